"""Every way of decoding on the same prompts, in turn: how fast each is, and how long a block pays."""
