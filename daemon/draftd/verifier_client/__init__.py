"""The wire between an edge and its verifier: the link to another daemon, and its messages."""
