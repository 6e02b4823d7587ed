"""How much room arrays of key-value caches are given: in steps, and ahead of need."""

from __future__ import annotations

STEP = 256  # capacity grows by this many positions, as mlx-lm's caches do
MARGIN = 64  # positions before capacity is used up when arrays begin to grow


def stepped(positions: int) -> int:
    return -(-positions // STEP) * STEP


def slots(rows: int, most_rows: int | None) -> int:
    """Doubled from one on, so that what is copied for a newcomer's sake stays in proportion."""
    doubled = 1 << (rows - 1).bit_length() if rows else 0
    return doubled if most_rows is None else max(rows, min(doubled, most_rows))
