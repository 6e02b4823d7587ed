"""Applies policy: the flag's provider, the planner."""
