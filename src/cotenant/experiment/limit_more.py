"""Do shares hold elsewhere than in the named cases, and on which machine? Several tenants, mixtures, wrong profiles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from cotenant.experiment.limit_world import WINDOW_S, World
from cotenant.live.clock import pause

LEAST_PCT: Final = 10
_WARM_S: Final = 1.0
_NEAR: Final = 5.0
_STAYS: Final = 5
_LOOKS: Final = 40
_RESIZED: Final = (20, 80, 40)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """How loaded was the machine? Other programs on its processors make holes in what any tenant uses."""

    processors: int
    load_begin: float
    load_end: float
    busy_pct: float
    """Of all processors, over the run: what programs used, the bench's own among them."""
    stolen_pct: float
    """What the hypervisor gave to others."""
    ticks: tuple[int, int, int]
    """Busy, stolen and all, as counted since the boot."""

    @classmethod
    def look(cls) -> Self:
        """As it is now."""
        counted = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        idle, stolen = counted[3] + counted[4], counted[7]
        load = round(os.getloadavg()[0], 2)
        return cls(
            processors=len(os.sched_getaffinity(0)),
            load_begin=load,
            load_end=load,
            busy_pct=0.0,
            stolen_pct=0.0,
            ticks=(sum(counted) - idle - stolen, stolen, sum(counted)),
        )

    def until_now(self) -> Machine:
        """Since this look."""
        now = self.look()
        busy, stolen, passed = (after - before for before, after in zip(self.ticks, now.ticks, strict=True))
        return msgspec.structs.replace(
            now,
            load_begin=self.load_begin,
            busy_pct=round(100 * busy / max(passed, 1), 1),
            stolen_pct=round(100 * stolen / max(passed, 1), 1),
        )


class LimitMore(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant in a case with others; percent of the device."""

    case: str
    tenant: str
    target_pct: float
    actual_pct: float
    error_pct: float


class _Player(NamedTuple):
    """A tenant, its work, and its static share; 0: none."""

    name: str
    kind: str
    share: int
    more: tuple[str, ...] = ()


_GREEDY: Final = _Player("greedy", "greedy", 0)
TOGETHER: Final = {
    "two with shares": (_Player("a", "small", 30), _Player("b", "greedy", 60)),
    "three with shares": (_Player("a", "large", 20), _Player("b", "graph", 30), _Player("c", "greedy", 40)),
    "two processes": (_GREEDY, _Player("a", "small", 40, ("--processes", "2"))),
    "kernels of four lengths": (_GREEDY, _Player("a", "mixed", 60)),
    "a graph on a quarter of the SMs": (_Player("a", "narrow", 20),),
    "twice as slow as its profile": (_GREEDY, _Player("a", "small", 30, ("--slower", "2"))),
    "twice as fast as its profile": (_GREEDY, _Player("a", "graph", 70, ("--slower", "0.5"))),
}


def together(world: World, seconds: float) -> Iterator[LimitMore]:
    """Each case once, all of its tenants at the same time."""
    for case, players in TOGETHER.items():
        for player in players:
            share = ("--share", f"{player.share}%", "--limit", "static") if player.share else ()
            world.begin(player.name, player.kind, *share, more=player.more)
        pause(_WARM_S)
        looks = world.windows(seconds)
        for player in players:
            actual = looks[-1].since(looks[0], player.name)
            if player.share:
                yield LimitMore(
                    case=case,
                    tenant=player.name,
                    target_pct=player.share,
                    actual_pct=round(actual, 3),
                    error_pct=round(abs(actual - player.share), 3),
                )
        world.end(*(player.name for player in players))


def least(world: World, seconds: float) -> float:
    """What a tenant below has of its least share while one above never rests."""
    world.begin("offline", "large", "--share", f"{LEAST_PCT}%")
    world.begin("online", "greedy", online=True)
    pause(_WARM_S)
    looks = world.windows(seconds)
    world.end("offline", "online")
    return round(looks[-1].since(looks[0], "offline"), 3)


def resized(world: World) -> float:
    """How long after `cotenant set` the share is the new one over half a second: the longest of some, in ms."""
    settled: list[float] = []
    world.begin("tenant", "small", "--share", f"{_RESIZED[-1]}%", "--limit", "static")
    pause(_WARM_S)
    for share in _RESIZED:
        world.set("tenant", "--share", f"{share}%")
        looks = [world.look()]
        while len(looks) <= _STAYS or (
            len(looks) < _LOOKS and abs(looks[-1].since(looks[-1 - _STAYS], "tenant") - share) > _NEAR
        ):
            pause(WINDOW_S)
            looks.append(world.look())
        settled.append((looks[-1 - _STAYS].at_ns - looks[0].at_ns) / 1e6)
    world.end("tenant")
    return round(max(settled), 1)
