"""Serving policies of others, registered in the entry-point group `cotenant.policies`."""
