"""Simulated device and server under the simulated clock."""
