"""Benchmarks behind the performance claims. Each compares configurations (arms) side by side, stores raw measurements,
and computes ratios from them later."""
