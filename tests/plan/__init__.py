"""Tests of `forebay plan`: against published figures, and against what the worker measures."""
