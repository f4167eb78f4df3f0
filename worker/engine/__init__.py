"""MLX: one model, its caches, its steps. Nothing outside this package but memory.py touches an array."""
