"""Beginnings of prompts on disk: bytes in, bytes out, without MLX."""
