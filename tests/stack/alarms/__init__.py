"""Each alert fired once in the real stack, by its cause, and taken to its effect and its end."""
