"""Graphs of published networks, without weights, for studies of the duration model."""
