"""Placement of offline jobs on the GPUs of several nodes."""
