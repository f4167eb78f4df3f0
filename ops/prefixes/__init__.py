"""What it saves that beginnings of prompts are kept and shared: `python -m ops.prefixes` measures it."""
