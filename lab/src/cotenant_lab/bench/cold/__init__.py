"""Bench `cold`: services whose kernels were never profiled, next to training."""
