"""Readings of the machine: unified memory, pressure, swap, heat and power, without root and without delaying
anything."""
