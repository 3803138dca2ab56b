"""Deep-learning workloads share a GPU without hurting each other."""

from cotenant.api import Model, request

__all__ = ["Model", "__version__", "request"]
__version__ = "0.1.0"
