"""Bench `goodput`: requests answered within their objective, by policy and load."""
