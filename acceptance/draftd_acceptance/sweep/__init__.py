"""Measures every way of decoding on the same prompts, in turn: how fast each is, and which block lengths pay."""
