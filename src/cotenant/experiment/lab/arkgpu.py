"""Does control keep every objective and waste nothing? Services beside trainings, in every way to share, simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.experiment.kernels import Setting
from cotenant.experiment.lab.arkgpu_cases import OBJECTIVES, RUN_NS, ArkCase, later, run_of
from cotenant.experiment.lab.fikit import Progress
from cotenant.experiment.lab.muxflow import Distribution, distribution_of
from cotenant.experiment.lab.workers import mapping
from cotenant.experiment.together import Lived, Outcome, Run, Turn
from cotenant.experiment.ways import share

PART: Final = "simulated"
OURS: Final = ("cotenant", "cotenant-slice")
"""Ways that follow the objective; the others are played once and judged by every objective."""
OTHERS: Final = (
    "exclusive",
    "mps",
    "mps-percent",
    "mps-percent-knee",
    "mps-priority",
    "slices",
    "grid",
    "tgs",
)
WAYS: Final = (*OURS, *OTHERS)
_ADAPT: Final = ("tgs",)
"""Others that need time to find their way."""
ATTAINED: Final = 0.99


class WayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One way to share in one case, by one objective."""

    attainment: float
    """Of the requests of all services that were due in the window, those answered within the objective."""
    worst: float
    """The same of the service with the least."""
    within_per_s: float
    p99_ratio: float
    """Of the service with the largest: p99 latency from due to answer, over the p99 alone."""
    offline: float
    """Kernel time of the training that was completed, over that on a device of its own in the same time."""
    gpus: int
    goodput: float
    """Per device: of every service its answers within the objective over its requests, and the training's progress, in
    sum."""
    goodput_capacity: float
    """Per device: of every service its answers within the objective over what it answers alone one after the other, and
    the training's progress, in sum."""
    busy: float
    """Of the devices' time, the part with a block on them."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One case and objective: what every way made of it."""

    name: str
    load: str
    level: float
    objective: int
    slo_ms: float
    requests: int
    ways: dict[str, WayFigures]
    turns: dict[str, int]
    """By way of ours: how often the share was changed."""
    services_only: float
    """Attainment of the worst service with the services on one device and no training: what they do to each other."""
    share_mean: dict[str, float]
    """By way of ours: what online work kept of the device, in the mean over the time."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """For plots: what happened in a case over time."""

    name: str
    objective: int
    slo_ms: float
    begin_ns: int
    """Of what counts; the instants of the rest are from then on."""
    end_ns: int
    turns: tuple[Turn, ...]
    latencies: dict[str, tuple[tuple[int, int], ...]]
    """By way: when a request was due, and how long it took; of the first service."""
    offline: dict[str, tuple[tuple[int, int], ...]]
    """By way: when, and what kernel time of the training was completed since the beginning of what counts."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A case by all objectives."""

    judged: list[Judged]
    courses: list[Course]


def judge_case(case: ArkCase, setting: Setting, run_ns: int, *, shown: bool = False) -> Played:
    """All runs of a case; a function of the case and the setting alone."""
    plain = run_of(case, setting, OBJECTIVES[0], run_ns)
    online = tuple(guest for guest in plain.guests if guest.online)
    services = share("mps", msgspec.structs.replace(later(plain), guests=later(plain).guests[: len(online)]))
    others = {way: share(way, plain if way in _ADAPT else later(plain)) for way in OTHERS}
    judged, courses = [], []
    for objective in OBJECTIVES:
        run = run_of(case, setting, objective, run_ns)
        outcomes = {way: share(way, run) for way in OURS} | others
        judged.append(judged_of(case, run, objective, outcomes, services))
        if shown:
            courses.append(_course(case, run, objective, outcomes))
    return Played(judged=judged, courses=courses)


def judged_of(case: ArkCase, run: Run, objective: int, outcomes: Mapping[str, Outcome], services: Outcome) -> Judged:
    """By the same requests in every way."""
    alone = outcomes["exclusive"]
    ours = {way: outcome for way, outcome in outcomes.items() if way in OURS}
    return Judged(
        name=case.name,
        load=case.load,
        level=case.level,
        objective=objective,
        slo_ms=run.guests[0].slo_ns / 1e6,
        requests=sum(_known(run, alone)),
        ways={way: figures_of(case, run, outcome, alone) for way, outcome in outcomes.items()},
        turns={way: sum(turn.at_ns >= run.warm_ns for turn in outcome.turns) for way, outcome in ours.items()},
        services_only=min(
            lived.attainment(guest.slo_ns) for guest, lived in zip(run.guests, services.guests, strict=False)
        ),
        share_mean={way: _mean_share(outcome) for way, outcome in ours.items()},
    )


def figures_of(case: ArkCase, run: Run, outcome: Outcome, alone: Outcome) -> WayFigures:
    """What one way made of it."""
    online = [
        (service, guest, lived)
        for service, guest, lived in zip(case.services, run.guests, outcome.guests, strict=False)
        if guest.online
    ]
    parts = [lived.attainment(guest.slo_ns) for _, guest, lived in online]
    kept = [lived.kept(guest.slo_ns) for _, guest, lived in online]
    per_s = [lived.within_per_s(guest.slo_ns) for _, guest, lived in online]
    offline = outcome.guests[-1].done_ns / max(alone.guests[-1].done_ns, 1)
    capacity = sum(rate / service.most_per_s for rate, (service, _, _) in zip(per_s, online, strict=True))
    span_ns = outcome.end_ns - outcome.begin_ns
    return WayFigures(
        attainment=sum(within for within, _ in kept) / max(sum(known for _, known in kept), 1),
        worst=min(parts),
        within_per_s=sum(per_s),
        p99_ratio=max(lived.quantile_ns(ATTAINED) / service.p99_ns for service, _, lived in online),
        offline=offline,
        gpus=outcome.gpus,
        goodput=(sum(parts) + offline) / outcome.gpus,
        goodput_capacity=(capacity + offline) / outcome.gpus,
        busy=outcome.busy_ns / (span_ns * outcome.gpus),
    )


def judge_cases(
    cases: Sequence[ArkCase], setting: Setting, workers: int, progress: Progress, *, run_ns: int = RUN_NS
) -> tuple[list[Judged], list[Course]]:
    """Every case; the number of workers changes nothing in them. The first of every load is shown."""
    judged: list[Judged] = []
    courses: list[Course] = []
    first = {case.load: case.name for case in reversed(cases)}
    shown = [case.name in first.values() for case in cases]
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        each = mapped(_judge, cases, [setting] * len(cases), [run_ns] * len(cases), shown)
        for done, played in enumerate(each, start=1):
            judged += played.judged
            courses += played.courses
            progress(PART, done, len(cases))
    return judged, courses


def _judge(case: ArkCase, setting: Setting, run_ns: int, shown: bool) -> Played:  # noqa: FBT001 - a column of a map
    return judge_case(case, setting, run_ns, shown=shown)


_Of = Callable[[Judged], float]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """All cases; distributions by figure, and those of every way by way and figure."""

    cases: list[Judged]
    against: dict[str, Distribution]
    """Ratios of `cotenant` to others, in percent above."""
    none_within: int
    """Cases in which default MPS answered nothing within the objective: counted as one request there."""
    ways: dict[str, dict[str, Distribution]]
    attainable: int
    """Cases in which a device of its own reaches the objective."""
    attained: dict[str, int]
    """By way: how many of these it reaches it in, too."""
    by_load: dict[str, dict[str, Distribution]]


def simulated_of(judged: Sequence[Judged]) -> Simulated:
    """The distributions carry the claims, not a chosen case."""
    reachable = [one for one in judged if one.ways["exclusive"].worst >= ATTAINED]
    by_load: dict[str, list[Judged]] = {}
    for one in judged:
        by_load.setdefault(one.load, []).append(one)
    return Simulated(
        cases=list(judged),
        against={name: distribution_of([of(one) for one in judged]) for name, of in AGAINST.items()},
        none_within=sum(not one.ways["mps"].within_per_s for one in judged),
        ways={
            way: {name: distribution_of([of(one, way) for one in judged]) for name, of in _FIGURES.items()}
            for way in WAYS
        },
        attainable=len(reachable),
        attained={way: sum(one.ways[way].worst >= ATTAINED for one in reachable) for way in WAYS},
        by_load={
            load: {name: distribution_of([of(one) for one in some]) for name, of in AGAINST.items()}
            for load, some in by_load.items()
        },
    )


def _throughput(one: Judged) -> float:
    """What MPS answers is at least one request of the run: a ratio to nothing says nothing."""
    each = one.ways["exclusive"].within_per_s / max(one.requests * one.ways["exclusive"].attainment, 1)
    return 100 * (one.ways["cotenant"].within_per_s / max(one.ways["mps"].within_per_s, each) - 1)


def _goodput(other: str, figure: str) -> _Of:
    def of(one: Judged) -> float:
        ours, theirs = getattr(one.ways["cotenant"], figure), getattr(one.ways[other], figure)
        return 100 * (float(ours) / max(float(theirs), 1e-9) - 1)

    return of


AGAINST: Final[dict[str, _Of]] = {
    "throughput_vs_mps_pct": _throughput,
    "goodput_vs_exclusive_pct": _goodput("exclusive", "goodput"),
    "goodput_vs_mps_pct": _goodput("mps", "goodput"),
    "goodput_capacity_vs_exclusive_pct": _goodput("exclusive", "goodput_capacity"),
    "goodput_capacity_vs_mps_pct": _goodput("mps", "goodput_capacity"),
}
_FIGURES: Final[dict[str, Callable[[Judged, str], float]]] = {
    "attainment": lambda one, way: one.ways[way].attainment,
    "p99_ratio": lambda one, way: one.ways[way].p99_ratio,
    "offline": lambda one, way: one.ways[way].offline,
    "goodput": lambda one, way: one.ways[way].goodput,
    "goodput_capacity": lambda one, way: one.ways[way].goodput_capacity,
    "busy": lambda one, way: one.ways[way].busy,
}


def _known(run: Run, outcome: Outcome) -> list[int]:
    return [
        lived.kept(guest.slo_ns)[1] for guest, lived in zip(run.guests, outcome.guests, strict=True) if guest.online
    ]


def _mean_share(outcome: Outcome) -> float:
    """Over the window; before the first step it is unknown and left out."""
    total = span = 0
    ends = [turn.at_ns for turn in outcome.turns[1:]] + [outcome.end_ns]
    for turn, end_ns in zip(outcome.turns, ends, strict=False):
        lasted_ns = max(end_ns - max(turn.at_ns, outcome.begin_ns), 0)
        total += lasted_ns * turn.online_ppm
        span += lasted_ns
    return total / span / 1e6 if span else 0.0


def _course(case: ArkCase, run: Run, objective: int, outcomes: Mapping[str, Outcome]) -> Course:
    drawn = {way: outcomes[way] for way in ("cotenant", "mps", "exclusive")}
    firsts = {way: outcome.guests[0] for way, outcome in drawn.items()}
    return Course(
        name=case.name,
        objective=objective,
        slo_ms=run.guests[0].slo_ns / 1e6,
        begin_ns=run.warm_ns,
        end_ns=run.for_ns,
        turns=drawn["cotenant"].turns,
        latencies={
            way: tuple(
                (due - lived.begin_ns, end - due) for due, end in zip(lived.dues_ns, lived.ends_ns, strict=False)
            )
            for way, lived in firsts.items()
        },
        offline={way: _since(outcome.guests[-1], run.sample_ns) for way, outcome in drawn.items()},
    )


def _since(lived: Lived, sample_ns: int) -> tuple[tuple[int, int], ...]:
    points = [((place + 1) * sample_ns - lived.begin_ns, done) for place, done in enumerate(lived.progress_ns)]
    base = next((done for at, done in reversed(points) if at <= 0), 0)
    return tuple((at, done - base) for at, done in points if at >= 0)
