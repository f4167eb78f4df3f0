"""What fits: `forebay plan` sizes a model for a machine from its config.json, without its weights."""
