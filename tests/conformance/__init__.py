"""What clients rely on, a row each: `python -m tests.conformance` prints the table, pytest runs its rows."""
