"""The edge's link to its verifier, and the messages on it."""
