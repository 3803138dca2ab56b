"""Simulated serving of many models from one device, and bounds on goodput."""
