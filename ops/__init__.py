"""For the operator: the `forebay` command and what it needs."""
