"""`cotenant selftest`: checks of hook, gate, quotas and node in front of the driver that is installed on a machine."""
