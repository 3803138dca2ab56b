"""Deep-learning workloads share a GPU without hurting each other."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cotenant.api import Model, request
    from cotenant.operate import AsyncNode, AsyncTenant, Node, RunningTenant, SoftwareGpus, TenantInfo, TenantTable

__all__ = [
    "AsyncNode",
    "AsyncTenant",
    "Model",
    "Node",
    "RunningTenant",
    "SoftwareGpus",
    "TenantInfo",
    "TenantTable",
    "__version__",
    "request",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the public API when it is first used: every command imports this package before it can do anything."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    module = importlib.import_module("cotenant.api" if name in ("Model", "request") else "cotenant.operate")
    return getattr(module, name)
