"""`make bench-peers`: compares draftd with mlx-lm's server and with itself, in several parts, each a benchmark of its
own."""
