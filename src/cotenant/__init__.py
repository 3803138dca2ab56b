"""Deep-learning workloads share a GPU without hurting each other."""

__version__ = "0.1.0"
