"""The engine beside mlx-lm's own batching, in one process: `python -m ops.engine` measures the ratios."""
