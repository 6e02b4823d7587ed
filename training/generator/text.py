"""Small helpers for tables written as text."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """A table of words, written as running text because that is how one reads and edits it."""
    return text.split()
