"""Kernel profiles: their values, the store, and the files from which they are imported."""
