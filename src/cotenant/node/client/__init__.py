"""Clients of a node: `cotenant run` and the commands that inspect or change tenants."""
