"""The node: the daemon of one machine, its clients, its decisions and their simulation."""
