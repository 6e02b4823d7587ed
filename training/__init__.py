"""Scripts that train the embedded model pair. The wheel does not contain them: they need PyTorch, the daemon does
not."""
