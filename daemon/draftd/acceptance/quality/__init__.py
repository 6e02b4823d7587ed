"""The frozen set of JSON and tool-call prompts, with and without drafts: is the task done as often?"""
