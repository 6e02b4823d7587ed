"""Measures whether a token's results depend on what else is computed with it, and makes decoding independent of it."""
