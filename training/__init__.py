"""Scripts that train the embedded model pair. Not shipped in the wheel: they need PyTorch, the daemon does not."""
