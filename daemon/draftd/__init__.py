"""draftd: serves an MLX language model over gRPC with speculative or autoregressive decoding."""

__version__ = "0.1.0"

DOCS_URL = "https://github.com/draftd/draftd/blob/main/docs"
"""Where the documents are to be read, without a slash at the end: what alerts link to."""
