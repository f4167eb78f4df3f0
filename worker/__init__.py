"""Token ids in, token ids out: the supervisor and the process that runs MLX."""
