"""Should offline programs be kept to the SMs that online leaves? A cap under MPS, against the gate alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.foretold import Sharing
from cotenant.domain.load import Load
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.placement import FOR_NS, KEPT_LEAST, WARM_NS, Progress, use_of_load
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.together import Guest, Run
from cotenant.experiment.ways import share
from cotenant.policy.limit.share import offline_percent
from cotenant.policy.predict.together import need_of

CAPS: Final = "caps"
OBJECTIVE: Final = 3
"""Times p99 alone."""


class Capped(msgspec.Struct, frozen=True, kw_only=True):
    """What became of pairs of a service and a training, with a cap or without."""

    offline: float
    """What the training got done of what it does alone, in the median."""
    p99: float
    """Of the service over its p99 alone, in the median."""
    broken: int


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs."""

    pairs: int
    percent: float
    """The cap, in the median."""
    capped: Capped
    free: Capped


def judge_caps(pairs: Sequence[tuple[Load, Load]], setting: Setting, workers: int, progress: Progress) -> Caps:
    """The cap is what is set as the training starts: the whole, without the need of the service and the headroom."""
    runs, percents = [], []
    for service, training in pairs:
        use, tail_ns = use_of_load(service, setting)
        slo_ns = round(OBJECTIVE * tail_ns)
        sharing = Sharing(is_mps=True)
        need = need_of(TenantSpec(Kind.ONLINE, 2, slo_ns=slo_ns, use=use), sharing) or 0
        percents.append(offline_percent(need, sharing.headroom_ppm))
        online = Guest(load=service, online=True, priority=2, slo_ns=slo_ns)
        below = Guest(load=training, online=False, priority=7)
        capped = msgspec.structs.replace(below, percent=percents[-1])
        for guests in ((online, capped), (online, below), (online,), (below,)):
            runs.append(Run(guests=guests, setting=setting, for_ns=FOR_NS, warm_ns=WARM_NS))
    found: list[tuple[float, float]] = []
    with mapping(workers) as mapped:
        for one in mapped(_fared, runs):
            found.append(one)
            progress(CAPS, len(found), len(runs))
    cases = [found[place : place + 4] for place in range(0, len(found), 4)]
    return Caps(
        pairs=len(cases),
        percent=statistics.median(percents),
        capped=_figures([(case[0], case[2], case[3]) for case in cases], runs[::4]),
        free=_figures([(case[1], case[2], case[3]) for case in cases], runs[::4]),
    )


def _fared(run: Run) -> tuple[float, float]:
    """p99 of the service and kernel time of the training, in nanoseconds, whichever are there."""
    outcome = share("cotenant", run)
    p99_ns = done_ns = 0.0
    for guest, lived in zip(run.guests, outcome.guests, strict=True):
        if guest.online:
            p99_ns = float(lived.quantile_ns(KEPT_LEAST))
        else:
            done_ns = float(lived.done_ns)
    return p99_ns, done_ns


def _figures(cases: Sequence[tuple[tuple[float, float], ...]], runs: Sequence[Run]) -> Capped:
    return Capped(
        offline=statistics.median(shared[1] / training[1] for shared, _, training in cases),
        p99=statistics.median(shared[0] / alone[0] for shared, alone, _ in cases),
        broken=sum(shared[0] > run.guests[0].slo_ns for (shared, _, _), run in zip(cases, runs, strict=True)),
    )
