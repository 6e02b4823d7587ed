"""Draft heads, tried whole: numbers, hidden states, controls and texts (`python -m tests.heads`)."""
