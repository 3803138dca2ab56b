"""Baselines: sharing modes of others, one file per mode, in the harness that also runs the product's own controller."""
