"""Benchmarks: what is promised about speed and tightness, measured side by side in one run."""
