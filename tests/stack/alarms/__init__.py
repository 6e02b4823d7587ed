"""Fires each alert once in the real stack, by its real cause, and follows it to its effect and its end."""
