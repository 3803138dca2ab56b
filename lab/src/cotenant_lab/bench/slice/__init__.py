"""Bench `slice`: the cost of launching kernels in parts, and what an online tenant is delayed by them."""
