"""What the machine says of itself: unified memory, pressure, swap, heat, power. Without root, and never in the way."""
