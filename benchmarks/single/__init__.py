"""`make bench` of one model without a draft model: against mlx-lm, its server, and draftd's own autoregressive
decoding."""
