"""`forebay bench`: what a server gives its users, measured from outside, as numbers that can be compared."""
