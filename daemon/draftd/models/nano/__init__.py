"""The embedded target and draft pair, its held-out prompts, and the record of its training (`MODEL_CARD.md`)."""
