"""Bench `limit`: how exactly limits hold tenants to their share of a device, by the device's counters."""
