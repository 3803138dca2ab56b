"""Composition roots: they connect the rooms and decide nothing."""
