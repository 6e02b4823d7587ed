"""Simulates the fallback policy on a simulated clock: how soon it steps down, how soon it recovers, and whether it
flaps."""
