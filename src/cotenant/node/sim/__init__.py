"""Simulated implementations of the node's ports, and the traffic of tenants."""
