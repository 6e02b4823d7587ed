"""Frozen prompts: `quality.jsonl`, whose answers are checked, and `probe.jsonl`, for probing drafts; their reading, and
the checks.

Prompts are only added, never changed, so that results stay comparable. None comes from the embedded pair's held-out
prompts or from a user.
"""
