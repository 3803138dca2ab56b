"""Further cases of bench `limit` (several tenants, mixtures, wrong profiles), and the load of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from cotenant.runner.clock import pause
from cotenant_lab.bench.limit.setup import WINDOW_S, LimitSetup

MIN_SHARE_PCT: Final = 10
_WARM_S: Final = 1.0
_NEAR: Final = 5.0
_STAYS: Final = 5
_LOOKS: Final = 40
_RESIZED: Final = (20, 80, 40)


class MachineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the machine was; other programs on its processors reduce what any tenant uses."""

    processors: int
    load_begin: float
    load_end: float
    busy_pct: float
    """Of all processors during the run, including the bench's own processes."""
    stolen_pct: float
    """Time that the hypervisor gave to others."""
    ticks: tuple[int, int, int]
    """Busy, stolen and total ticks since boot."""

    @classmethod
    def now(cls) -> Self:
        """Read the current counters."""
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        idle, stolen = ticks[3] + ticks[4], ticks[7]
        load = round(os.getloadavg()[0], 2)
        return cls(
            processors=len(os.sched_getaffinity(0)),
            load_begin=load,
            load_end=load,
            busy_pct=0.0,
            stolen_pct=0.0,
            ticks=(sum(ticks) - idle - stolen, stolen, sum(ticks)),
        )

    def until_now(self) -> MachineLoad:
        """Return the values between this reading and now."""
        now = self.now()
        busy, stolen, total = (end - begin for begin, end in zip(self.ticks, now.ticks, strict=True))
        return msgspec.structs.replace(
            now,
            load_begin=self.load_begin,
            busy_pct=round(100 * busy / max(total, 1), 1),
            stolen_pct=round(100 * stolen / max(total, 1), 1),
        )


class SharedLimitCase(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant in a case with several; values in percent of the device."""

    case: str
    tenant: str
    target_pct: float
    actual_pct: float
    error_pct: float


class _LimitedTenant(NamedTuple):
    """A tenant, its work, and its static share; 0: no limit."""

    name: str
    kind: str
    share: int
    more: tuple[str, ...] = ()


_GREEDY: Final = _LimitedTenant("greedy", "greedy", 0)
SHARED_CASES: Final = {
    "two with shares": (_LimitedTenant("a", "small", 30), _LimitedTenant("b", "greedy", 60)),
    "three with shares": (
        _LimitedTenant("a", "large", 20),
        _LimitedTenant("b", "graph", 30),
        _LimitedTenant("c", "greedy", 40),
    ),
    "two processes": (_GREEDY, _LimitedTenant("a", "small", 40, ("--processes", "2"))),
    "kernels of four lengths": (_GREEDY, _LimitedTenant("a", "mixed", 60)),
    "a graph on a quarter of the SMs": (_LimitedTenant("a", "narrow", 20),),
    "twice as slow as its profile": (_GREEDY, _LimitedTenant("a", "small", 30, ("--slower", "2"))),
    "twice as fast as its profile": (_GREEDY, _LimitedTenant("a", "graph", 70, ("--slower", "0.5"))),
}


def run_shared_cases(setup: LimitSetup, seconds: float) -> Iterator[SharedLimitCase]:
    """Run each case once, all of its tenants at the same time."""
    for case, tenants in SHARED_CASES.items():
        for tenant in tenants:
            share = ("--share", f"{tenant.share}%", "--limit", "static") if tenant.share else ()
            setup.begin(tenant.name, tenant.kind, *share, program_flags=tenant.more)
        pause(_WARM_S)
        snapshots = setup.windows(seconds)
        for tenant in tenants:
            actual = snapshots[-1].since(snapshots[0], tenant.name)
            if tenant.share:
                yield SharedLimitCase(
                    case=case,
                    tenant=tenant.name,
                    target_pct=tenant.share,
                    actual_pct=round(actual, 3),
                    error_pct=round(abs(actual - tenant.share), 3),
                )
        setup.end(*(tenant.name for tenant in tenants))


def min_share(setup: LimitSetup, seconds: float) -> float:
    """Return what an offline tenant gets of its minimum share while an online tenant is always busy."""
    setup.begin("offline", "large", "--share", f"{MIN_SHARE_PCT}%")
    setup.begin("online", "greedy", online=True)
    pause(_WARM_S)
    snapshots = setup.windows(seconds)
    setup.end("offline", "online")
    return round(snapshots[-1].since(snapshots[0], "offline"), 3)


def resized(setup: LimitSetup) -> float:
    """Return the longest time in ms after `cotenant set` until half a second is near the new share."""
    settled: list[float] = []
    setup.begin("tenant", "small", "--share", f"{_RESIZED[-1]}%", "--limit", "static")
    pause(_WARM_S)
    for share in _RESIZED:
        setup.set("tenant", "--share", f"{share}%")
        snapshots = [setup.snapshot()]
        while len(snapshots) <= _STAYS or (
            len(snapshots) < _LOOKS and abs(snapshots[-1].since(snapshots[-1 - _STAYS], "tenant") - share) > _NEAR
        ):
            pause(WINDOW_S)
            snapshots.append(setup.snapshot())
        settled.append((snapshots[-1 - _STAYS].at_ns - snapshots[0].at_ns) / 1e6)
    setup.end("tenant")
    return round(max(settled), 1)
