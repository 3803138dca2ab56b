"""Conversion between online shares and gate limits, and division of a device among peers."""
