"""Bench `faults`: lost requests of an online tenant while co-running tenants, processes or the device fail."""
