"""Compare a cap on the SMs of offline programs under MPS with the gate alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.gate.grant import Kind
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.policy.limit.share import offline_percent
from cotenant.predict.co_location import required_share_ppm
from cotenant.predict.sharing_forecast import Sharing
from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import Guest, RunSpec
from cotenant.workload.load import Workload
from cotenant_lab.baselines.modes import share
from cotenant_lab.study.placement.run import FOR_NS, KEPT_LEAST, WARM_NS, Progress, lasting, use_of_load
from cotenant_lab.study.workers import mapping

CAPS: Final = "caps"
OBJECTIVE: Final = 3
"""Multiple of the p99 alone."""


class CapResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of pairs of a service and a training, with a cap or without."""

    offline: float
    """Median work done by the training relative to alone."""
    p99: float
    """Median of the service's p99 over its p99 alone."""
    broken: int


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all pairs."""

    pairs: int
    percent: float
    """Median of the cap."""
    capped: CapResult
    free: CapResult


def evaluate_caps(
    pairs: Sequence[tuple[Workload, Workload]], setting: RunSettings, workers: int, progress: Progress
) -> Caps:
    """Evaluate all pairs; the cap is the whole device less the service's need and the headroom."""
    runs, percents = [], []
    for service, training in pairs:
        use, tail_ns = use_of_load(service, setting)
        slo_ns = round(OBJECTIVE * tail_ns)
        sharing = Sharing(is_mps=True)
        need = required_share_ppm(TenantSpec(Kind.ONLINE, 2, slo_ns=slo_ns, use=use), sharing) or 0
        percents.append(offline_percent(need, sharing.headroom_ppm))
        online = Guest(load=lasting(service), online=True, priority=2, slo_ns=slo_ns)
        offline = Guest(load=training, online=False, priority=7)
        capped = msgspec.structs.replace(offline, percent=percents[-1])
        for guests in ((online, capped), (online, offline), (online,), (offline,)):
            runs.append(RunSpec(guests=guests, setting=setting, for_ns=FOR_NS, warm_ns=WARM_NS))
    results: list[tuple[float, float]] = []
    with mapping(workers) as mapped:
        for result in mapped(_run_result, runs):
            results.append(result)
            progress(CAPS, len(results), len(runs))
    cases = [results[first : first + 4] for first in range(0, len(results), 4)]
    return Caps(
        pairs=len(cases),
        percent=statistics.median(percents),
        capped=_metrics([(case[0], case[2], case[3]) for case in cases], runs[::4]),
        free=_metrics([(case[1], case[2], case[3]) for case in cases], runs[::4]),
    )


def _run_result(run: RunSpec) -> tuple[float, float]:
    """Return the p99 of the service and the kernel time of the training in nanoseconds, if present."""
    outcome = share("cotenant", run)
    p99_ns = done_ns = 0.0
    for guest, result in zip(run.guests, outcome.guests, strict=True):
        if guest.online:
            p99_ns = float(result.quantile_ns(KEPT_LEAST))
        else:
            done_ns = float(result.done_ns)
    return p99_ns, done_ns


def _metrics(cases: Sequence[tuple[tuple[float, float], ...]], runs: Sequence[RunSpec]) -> CapResult:
    return CapResult(
        offline=statistics.median(shared[1] / training[1] for shared, _, training in cases),
        p99=statistics.median(shared[0] / alone[0] for shared, alone, _ in cases),
        broken=sum(shared[0] > run.guests[0].slo_ns for (shared, _, _), run in zip(cases, runs, strict=True)),
    )
