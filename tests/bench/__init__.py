"""Tests of `forebay bench`."""
