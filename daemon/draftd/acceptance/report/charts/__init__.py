"""The charts, each from plain figures: what is drawn, what it says, and how it is told to one who cannot see it."""
