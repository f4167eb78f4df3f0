"""`forebay doctor`: readings of machine, MLX, memory, disk, port, model and settings, with verdicts."""
