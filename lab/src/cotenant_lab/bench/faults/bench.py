"""Measure lost requests and recovery time for every kind of fault, many times, under two sharing modes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import WorldError
from cotenant.workload.player import quantile
from cotenant_lab.bench.faults.kinds import KINDS, FaultKind
from cotenant_lab.bench.faults.setup import NODE_FLAGS, PERIOD_US, FaultsSetup, give_time
from cotenant_lab.programs.site import TENANT_FLAGS

TIMES: Final = 20
ReportLine = Callable[[str], None]


class FaultKindResult(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault under one sharing mode."""

    kind: str
    about: str
    sharing: str
    times: int
    online_lost_requests: int
    lost_in: int
    """Number of repetitions in which any request was lost."""
    excuse: str
    """Why hardware would lose the requests too; empty: none may be lost."""
    recovery_ms_p50: float
    recovery_ms_p99: float
    recovery_ms_max: float
    state_after: str


class FaultsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of `bench faults`."""

    bench: str = "faults"
    times: int
    requests_per_s: float
    node_flags: list[str]
    tenant_flags: list[str]
    kinds: int
    online_lost_requests: dict[str, int]
    """By kind, both sharing modes together."""
    unexcused_lost_requests: int
    recovery_ms_p99: float
    state_after: str
    results: list[FaultKindResult]
    met: dict[str, bool]
    """Targets by field."""


def bench_faults(times: int, report: ReportLine, *, only: Sequence[str] = ()) -> FaultsReport:
    """Inject each kind `times` times under time slices and under MPS, while a service runs without pause."""
    kinds = [kind for kind in KINDS if not only or kind.name in only]
    # Both modes run concurrently: most of the time is waiting for processes to start.
    with ThreadPoolExecutor(2) as pool:
        worlds = [pool.submit(_inject_all, kinds, times, report, mps=mps) for mps in (False, True)]
        outcomes = [outcome for setup in worlds for outcome in setup.result()]
    results = [outcome for outcome, _ in outcomes]
    recoveries = [took_ns for _, durations in outcomes for took_ns in durations]
    lost: dict[str, int] = {}
    for result in results:
        lost[result.kind] = lost.get(result.kind, 0) + result.online_lost_requests
    unexcused = sum(result.online_lost_requests for result in results if not result.excuse)
    states = {result.state_after for result in results}
    return FaultsReport(
        times=times,
        requests_per_s=1e6 / PERIOD_US,
        node_flags=list(NODE_FLAGS),
        tenant_flags=list(TENANT_FLAGS),
        kinds=len(kinds),
        online_lost_requests=lost,
        unexcused_lost_requests=unexcused,
        recovery_ms_p99=quantile(sorted(recoveries), 0.99) / 1e6,
        state_after=", ".join(sorted(states)),
        results=results,
        met={"unexcused_lost_requests": not unexcused, "state_after": states == {"healthy"}},
    )


def _inject_all(
    kinds: Sequence[FaultKind], times: int, report: ReportLine, *, mps: bool
) -> list[tuple[FaultKindResult, list[int]]]:
    """Inject all kinds one after the other into one setup."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="cotenant-faults-") as home, FaultsSetup(Path(home), mps=mps) as setup:
        _await_recovery(setup, setup.due(), setup.clock.now(), 0, replaced=False)
        for number, kind in enumerate(kinds, 1):
            if kind.mps_only and not mps:
                continue
            report(f"{'MPS' if mps else 'time slices'}: {kind.name} ({number} of {len(kinds)}), {times} times")
            outcomes.append(_repeat(setup, kind, times))
    return outcomes


def _repeat(setup: FaultsSetup, kind: FaultKind, times: int) -> tuple[FaultKindResult, list[int]]:
    if kind.suspends:
        setup.swap(setup.worker, setup.patient)
        _await_recovery(setup, setup.due(), setup.clock.now(), 0, replaced=False)
    lost, took_ns = [], []
    for _ in range(times):
        give_time()
        first, begin_ns, worker_pid = setup.due(), setup.clock.now(), setup.worker.pid
        kind.strike(setup)
        took_ns.append(_await_recovery(setup, first, begin_ns, worker_pid, replaced=kind.replaces) - begin_ns)
        lost.append(setup.lost(first, int(setup.service.last_line().split()[0])))
    state = setup.health()
    ordered = sorted(took_ns)
    result = FaultKindResult(
        kind=kind.name,
        about=kind.about,
        sharing="mps" if setup.mps else "slices",
        times=times,
        online_lost_requests=sum(lost),
        lost_in=sum(1 for count in lost if count),
        excuse=kind.excuse(mps=setup.mps),
        recovery_ms_p50=quantile(ordered, 0.5) / 1e6,
        recovery_ms_p99=quantile(ordered, 0.99) / 1e6,
        recovery_ms_max=ordered[-1] / 1e6,
        state_after=state,
    )
    return result, took_ns


def _await_recovery(setup: FaultsSetup, first: int, since_ns: int, old_pid: int, *, replaced: bool) -> int:
    """Return the instant from which on the service serves, the worker works and the device is healthy."""
    try:
        for _ in setup.until("the service, the worker or the device has not recovered"):
            pid = setup.worker.pid
            is_other = pid and (pid != old_pid or not replaced)
            if is_other and setup.serves(first) and setup.works(since_ns) and setup.is_healthy():
                return setup.clock.now()
    except WorldError as error:
        raise WorldError(f"{error}: {_state_of(setup)}") from None
    raise AssertionError("the loop returns or raises")


def _state_of(setup: FaultsSetup) -> str:
    parts = [
        f"the service {'serves' if setup.serves(0) else 'does not serve'} (last {setup.service.last_line()!r})",
        f"the worker is {setup.worker.pid or 'not running'} (last {setup.worker.last_line()!r})",
        f"the device is {setup.health()}",
    ]
    for name in ("node.err", "service.err", "worker.err"):
        lines = (setup.home / name).read_text(errors="replace").strip().splitlines()[-2:]
        parts.append(f"{name}: {' | '.join(lines)}")
    return "; ".join(parts)
