"""How do tests put two tenants at a device's gate without a node?"""

from __future__ import annotations

from pathlib import Path

from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.live.gate import LiveGates, path_of
from cotenant.live.page import SLOT_VARIABLE
from cotenant.policy.schedule import roster

ONLINE, OFFLINE = 0, 1
GENERATION = 1


class Gate:
    """The gate of one device with an online and an offline tenant, and what programs in their seats are told."""

    def __init__(self, home: Path, policy: GatePolicy = GatePolicy.FILL) -> None:
        self._gates = LiveGates(home, 2)
        self.path = path_of(home, 0)
        self.policy = policy
        self.seat()

    def seat(
        self,
        online: int | None = 2,
        offline: int = 7,
        *,
        paused: bool = False,
        static_ppm: int = 0,
        patience_ns: int = GateRules().patience_ns,
    ) -> None:
        """Say anew who sits where; None: the online one is gone."""
        below = GateSeat(OFFLINE, GENERATION, offline, False, paused, limit_ppm=static_ppm, static=static_ppm > 0)
        above = () if online is None else (GateSeat(ONLINE, GENERATION, online, online=True),)
        self._gates.seat(0, GateRules(self.policy, patience_ns=patience_ns, seats=(*above, below)))

    def environ(self, environ: dict[str, str], records: Path, slot: int) -> dict[str, str]:
        """The environment of a program in a seat, which finds the file beside its records."""
        link = records / "gate"
        if not link.is_symlink():
            link.symlink_to(self.path)
        return {**environ, SLOT_VARIABLE: f"{slot}/{GENERATION}"}

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """What a tenant's page says."""
        with self.path.open("rb") as file:
            file.seek(roster.page_offset(slot))
            return roster.read_page(file.read(roster.PAGE_BYTES))

    def close(self) -> None:
        self._gates.close()
