"""Predictions of latency, slowdown, load and speed: pure functions of measurements, with intervals."""
