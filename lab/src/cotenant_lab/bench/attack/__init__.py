"""Bench `attack`: an online tenant serves while an offline tenant attacks it, the node and the device's accounting."""
