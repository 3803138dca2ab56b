"""What do faults cost a service, and how soon is everything well again? Every kind, many times, two ways to share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import WorldError
from cotenant.experiment.faults.kinds import KINDS, FaultKind
from cotenant.experiment.faults.world import NODE_FLAGS, PERIOD_US, World, give_time
from cotenant.experiment.site import TENANT_FLAGS
from cotenant.live.player import quantile

TIMES: Final = 20
Say = Callable[[str], None]


class KindFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault, one way to share."""

    kind: str
    about: str
    sharing: str
    times: int
    online_lost_requests: int
    lost_in: int
    """In how many of the times any was lost."""
    excuse: str
    """Why hardware would lose them too; empty: it must not."""
    recovery_ms_p50: float
    recovery_ms_p99: float
    recovery_ms_max: float
    state_after: str


class FaultsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bench found."""

    bench: str = "faults"
    times: int
    requests_per_s: float
    node_flags: list[str]
    tenant_flags: list[str]
    kinds: int
    online_lost_requests: dict[str, int]
    """By kind, both ways to share together."""
    unexcused_lost_requests: int
    recovery_ms_p99: float
    state_after: str
    figures: list[KindFigures]


def bench_faults(times: int, say: Say, *, only: Sequence[str] = ()) -> FaultsReport:
    """Each kind so many times under time slices and under MPS, beside a service that never pauses."""
    kinds = [kind for kind in KINDS if not only or kind.name in only]
    # Both at once: most of the time is waiting for processes to start.
    with ThreadPoolExecutor(2) as pool:
        worlds = [pool.submit(_endure, kinds, times, say, mps=mps) for mps in (False, True)]
        found = [one for world in worlds for one in world.result()]
    figures = [one for one, _ in found]
    recoveries = [took_ns for _, took in found for took_ns in took]
    lost: dict[str, int] = {}
    for one in figures:
        lost[one.kind] = lost.get(one.kind, 0) + one.online_lost_requests
    states = {one.state_after for one in figures}
    return FaultsReport(
        times=times,
        requests_per_s=1e6 / PERIOD_US,
        node_flags=list(NODE_FLAGS),
        tenant_flags=list(TENANT_FLAGS),
        kinds=len(kinds),
        online_lost_requests=lost,
        unexcused_lost_requests=sum(one.online_lost_requests for one in figures if not one.excuse),
        recovery_ms_p99=quantile(sorted(recoveries), 0.99) / 1e6,
        state_after=", ".join(sorted(states)),
        figures=figures,
    )


def _endure(kinds: Sequence[FaultKind], times: int, say: Say, *, mps: bool) -> list[tuple[KindFigures, list[int]]]:
    """All kinds in one world, one after the other."""
    found = []
    with tempfile.TemporaryDirectory(prefix="cotenant-faults-") as home, World(Path(home), mps=mps) as world:
        _await_well(world, world.due(), world.clock.now(), 0, replaced=False)
        for number, kind in enumerate(kinds, 1):
            if kind.mps_only and not mps:
                continue
            say(f"{'MPS' if mps else 'time slices'}: {kind.name} ({number} of {len(kinds)}), {times} times")
            found.append(_repeat(world, kind, times))
    return found


def _repeat(world: World, kind: FaultKind, times: int) -> tuple[KindFigures, list[int]]:
    if kind.suspends:
        world.swap(world.worker, world.patient)
        _await_well(world, world.due(), world.clock.now(), 0, replaced=False)
    lost, took_ns = [], []
    for _ in range(times):
        give_time()
        first, began_ns, before = world.due(), world.clock.now(), world.worker.pid
        kind.strike(world)
        took_ns.append(_await_well(world, first, began_ns, before, replaced=kind.replaces) - began_ns)
        lost.append(world.lost(first, int(world.service.last_line().split()[0])))
    state = world.health()
    ordered = sorted(took_ns)
    figures = KindFigures(
        kind=kind.name,
        about=kind.about,
        sharing="mps" if world.mps else "slices",
        times=times,
        online_lost_requests=sum(lost),
        lost_in=sum(1 for one in lost if one),
        excuse=kind.excuse(mps=world.mps),
        recovery_ms_p50=quantile(ordered, 0.5) / 1e6,
        recovery_ms_p99=quantile(ordered, 0.99) / 1e6,
        recovery_ms_max=ordered[-1] / 1e6,
        state_after=state,
    )
    return figures, took_ns


def _await_well(world: World, first: int, since_ns: int, before: int, *, replaced: bool) -> int:
    """The instant from which the service serves, the worker works and the device is healthy again."""
    try:
        for _ in world.until("not well again"):
            pid = world.worker.pid
            is_other = pid and (pid != before or not replaced)
            if is_other and world.serves(first) and world.works(since_ns) and world.is_healthy():
                return world.clock.now()
    except WorldError as error:
        raise WorldError(f"{error}: {_state_of(world)}") from None
    raise AssertionError("the last look returns or raises")


def _state_of(world: World) -> str:
    parts = [
        f"the service {'serves' if world.serves(0) else 'does not serve'} (last {world.service.last_line()!r})",
        f"the worker is {world.worker.pid or 'nowhere'} (last {world.worker.last_line()!r})",
        f"the device is {world.health()}",
    ]
    for name in ("node.err", "service.err", "worker.err"):
        lines = (world.home / name).read_text(errors="replace").strip().splitlines()[-2:]
        parts.append(f"{name}: {' | '.join(lines)}")
    return "; ".join(parts)
