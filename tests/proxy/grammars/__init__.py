"""Tests of the grammars that answers are held to."""
