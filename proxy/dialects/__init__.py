"""The endpoints that generate, each with its own words for the same answers."""
