"""Deep-learning workloads share a GPU without hurting each other."""

from cotenant.told import request

__all__ = ["__version__", "request"]
__version__ = "0.1.0"
