"""Measures whether a token's results depend on what else is computed with it, and makes decoding avoid it."""
