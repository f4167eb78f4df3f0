"""What is kept of prompts' beginnings, and who may use it: pure, without MLX, a clock or files."""
