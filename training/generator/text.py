"""A helper for tables that are written as text."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """Splits a table of words, which is written as running text to be easy to read and edit."""
    return text.split()
