"""The foundation's figures, as ratios within one run: `python -m ops.figures` measures them here."""
