"""Deep-learning workloads share a GPU without hurting each other."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cotenant.api import Model, request

__all__ = ["Model", "__version__", "request"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the public API when it is first used: every command imports this package before it can do anything."""
    if name not in ("Model", "request"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cotenant import api  # noqa: PLC0415

    return getattr(api, name)
