"""draftd: serves an MLX language model over gRPC with speculative or autoregressive decoding."""

__version__ = "0.1.0"
