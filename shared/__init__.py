"""The words both sides need: messages, limits, settings, errors. Imports neither MLX nor aiohttp."""
