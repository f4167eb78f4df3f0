"""Faults on purpose, in real processes, judged from outside: `python -m ops.chaos SCENARIO…`."""
