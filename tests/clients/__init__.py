"""Real clients, unchanged, against a real gateway whose worker says what a test tells it."""
