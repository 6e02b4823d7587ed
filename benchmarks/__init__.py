"""What the performance claims are measured with: arms paired in one run, raw ticks kept, ratios derived later."""
