"""Is it good enough? A spec says what is wanted, a run what was measured; the verdict says which of it was proven."""
