"""Bytes and text to values and back, without touching the world."""
