"""Wardens that only remember what they were told to do."""

from __future__ import annotations


class SimWardens:
    """What was done, in order."""

    __slots__ = ("killed", "mps_restarts")

    def __init__(self) -> None:
        """Nothing was done yet."""
        self.killed: list[tuple[int, int, int]] = []
        self.mps_restarts: list[int] = []

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """Note whom."""
        self.killed.append((gpu, slot, pid))

    def restart_mps(self, gpu: int) -> None:
        """Note where."""
        self.mps_restarts.append(gpu)
