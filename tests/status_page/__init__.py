"""The status page in a real browser: what an operator sees as it happens."""
