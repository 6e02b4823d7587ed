"""`make bench-peers`: draftd against mlx-lm's own server and against itself, part by part, and what follows from it."""
