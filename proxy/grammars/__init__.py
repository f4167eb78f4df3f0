"""One grammar for a whole answer: made of what a request asks for, and checked before anything is queued."""
