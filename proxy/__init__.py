"""HTTP in, text out: the gateway. Never imports MLX."""
