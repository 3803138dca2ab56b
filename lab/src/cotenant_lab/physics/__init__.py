"""Code that fits the physics of the device model to published data."""
