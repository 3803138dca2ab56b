"""Budget of memory for partly received requests and unread responses, shared by all connections."""

from __future__ import annotations


class ByteBudget:
    """A number of bytes that connections share."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Start unused."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def reserve(self, size_bytes: int) -> bool:
        """Reserve bytes; return False and reserve nothing if the budget does not suffice."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Return reserved bytes."""
        self.used_bytes -= size_bytes


class OpenCalls:
    """Number of calls of all connections; beyond the limit, connections with several calls may open no more."""

    __slots__ = ("count", "limit")

    def __init__(self, limit: int = 1 << 16) -> None:
        """Start without calls."""
        self.count = 0
        self.limit = limit
