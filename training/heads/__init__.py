"""Trains draft heads in MTP form for two Llama targets, on text that each target draws itself."""
