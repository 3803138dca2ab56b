"""Readers of published data sets, one module per set."""
