"""Continuous decoding for a long time: does memory grow without bound, does acceptance hold, does anything fail?"""
