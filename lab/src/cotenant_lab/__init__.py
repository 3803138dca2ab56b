"""Benchmarks, paper studies and baseline policies for cotenant."""

__version__ = "0.1.0"
