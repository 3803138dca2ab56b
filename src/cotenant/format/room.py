"""How much may be held for clients that have not said all yet, or do not listen? One count for all of them."""

from __future__ import annotations


class Room:
    """A number of bytes that connections share."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Nothing is used."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Use so much more; False where there is not enough, and then nothing was taken."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """So much is free again."""
        self.used_bytes -= size_bytes
