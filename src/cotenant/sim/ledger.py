"""Ledgers as a table: what the file of each device would say."""

from __future__ import annotations


class SimLedgers:
    """One account per device and slot; both handles are the device itself."""

    __slots__ = ("_accounts",)

    def __init__(self) -> None:
        """Nobody holds anything."""
        self._accounts: dict[tuple[int, int], tuple[int, int]] = {}

    def grant(self, gpu: int, slot: int, generation: int) -> None:
        """Begin an empty account, unless this generation has it already."""
        if self._accounts.get((gpu, slot), (0, 0))[0] != generation:
            self._accounts[gpu, slot] = (generation, 0)

    def held(self, gpu: int, slot: int) -> int:
        """What the account says."""
        return self._accounts.get((gpu, slot), (0, 0))[1]

    def handles(self, gpu: int) -> tuple[int, ...]:
        """The device twice, where there is one."""
        return () if gpu < 0 else (gpu, gpu)

    def hold(self, gpu: int, slot: int, held_bytes: int) -> None:
        """A tenant holds so much from now on."""
        generation, _ = self._accounts[gpu, slot]
        self._accounts[gpu, slot] = (generation, held_bytes)
