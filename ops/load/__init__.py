"""Load on a gateway, made here and measured as ratios within one run: `python -m ops.load SCENARIO…`."""
