"""The embedded target and draft pair, its held-out prompts, and the record of how it was trained (`MODEL_CARD.md`)."""
