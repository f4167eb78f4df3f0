"""What the gateway shows of itself: a snapshot, a quarter of an hour of history, and a page of both."""
