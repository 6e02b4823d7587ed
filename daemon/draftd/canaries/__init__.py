"""Frozen prompts: `quality.jsonl`, whose answers are checked, and `probe.jsonl`, with which a draft is tried out; how
they are read, and how an answer is checked.

They are never changed, only added to: what was measured with them before must be comparable with what comes after.
None of them was taken from the embedded pair's held-out prompts, and none of them holds anything of a user's.
"""
