"""Wardens that only remember what they were told to do."""

from __future__ import annotations

from cotenant.domain.protect import GpuWatch


class SimWardens:
    """What was done, in order."""

    __slots__ = ("killed", "mps_restarts", "shown")

    def __init__(self) -> None:
        """Nothing was done yet."""
        self.killed: list[tuple[int, int, int]] = []
        self.mps_restarts: list[int] = []
        self.shown: list[tuple[int, GpuWatch]] = []

    def kill(self, gpu: int, slot: int, pid: int) -> None:
        """Note whom."""
        self.killed.append((gpu, slot, pid))

    def restart_mps(self, gpu: int) -> None:
        """Note where."""
        self.mps_restarts.append(gpu)

    def show(self, gpu: int, watch: GpuWatch) -> None:
        """Note what."""
        self.shown.append((gpu, watch))
