"""Values of the node: tenants, devices, events, actions and settings."""
