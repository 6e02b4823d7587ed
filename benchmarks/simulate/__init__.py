"""The fallback's policy on a simulated clock: how soon it falls, how soon it comes back, whether it ever flaps."""
