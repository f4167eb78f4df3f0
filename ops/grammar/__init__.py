"""What grammars cost a decode step: `python -m ops.grammar` measures it."""
