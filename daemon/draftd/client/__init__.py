"""A client of the daemon: typed calls, one request from asking to its answer, prompts, a daemon of one's own."""
