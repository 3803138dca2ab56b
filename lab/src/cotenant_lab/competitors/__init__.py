"""Servers that the benches compare with."""
