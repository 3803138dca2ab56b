"""The node daemon: its socket, its monitors, its metrics and log."""
