"""Evaluate every case in every sharing mode in simulated time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.simulate.kernels import RunSettings
from cotenant.simulate.sharing import RunSpec, ShareChange, SharingOutcome, TenantResult
from cotenant_lab.baselines.modes import share
from cotenant_lab.study.arkgpu.cases import OBJECTIVES, RUN_NS, ArkCase, run_of, shorten_warmup
from cotenant_lab.study.fikit.run import Progress
from cotenant_lab.study.muxflow_node.run import Distribution, distribution_of
from cotenant_lab.study.workers import mapping

PART: Final = "simulated"
OURS: Final = ("cotenant", "cotenant-slice")
"""Modes that use the objective; the others run once and are evaluated with every objective."""
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
MODES: Final = (*OURS, *OTHERS)
_ADAPT: Final = ("tgs",)
"""Other modes that need time to adapt."""
ATTAINED: Final = 0.99


class ModeMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One sharing mode in one case, by one objective."""

    attainment: float
    """Of the requests of all services that were due in the window, the fraction answered within the objective."""
    worst: float
    """The same for the service with the lowest fraction."""
    within_per_s: float
    p99_ratio: float
    """Maximum over services: p99 latency from due to answer, over the p99 alone."""
    service_ratio: float
    """Maximum over services: median duration of a request without its queue, over the mean alone."""
    is_bounded: bool
    """Whether no service's queue grew over the window; the latencies of others depend on its length."""
    offline: float
    """Completed kernel time of the training, over that on a dedicated device in the same time."""
    gpus: int
    goodput: float
    """Per device: sum of the fraction of requests answered within the objective over all services, and the training's
    progress as a fraction of that on a device of its own. The only definition, for every mode."""
    busy: float
    """Fraction of the devices' time with a block running."""


class ArkResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case and objective: the results of every mode."""

    name: str
    load: str
    level: float
    objective: int
    slo_ms: float
    requests: int
    modes: dict[str, ModeMetrics]
    turns: dict[str, int]
    """By mode of ours: number of changes of the share."""
    services_only: float
    """Lowest attainment of the services on one device without a training: their effect on each other."""
    goodput_bound: float
    """Goodput of one device with every objective kept, if the training got all SM time that the services leave."""
    share_mean: dict[str, float]
    """By mode of ours: mean online share over time."""


class CaseTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A case over time, for plots."""

    name: str
    objective: int
    slo_ms: float
    begin_ns: int
    """Start of the measured window; other instants are relative to it."""
    end_ns: int
    turns: tuple[ShareChange, ...]
    latencies: dict[str, tuple[tuple[int, int], ...]]
    """By mode: when a request of the first service was due, and how long it took."""
    offline: dict[str, tuple[tuple[int, int], ...]]
    """By mode: time, and completed kernel time of the training since the start of the window."""


class DeviceRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a case for all objectives."""

    results: list[ArkResult]
    timelines: list[CaseTimeline]


def evaluate_case(case: ArkCase, setting: RunSettings, run_ns: int, *, shown: bool = False) -> DeviceRun:
    """Run a case in all modes; the result depends on the case and the setting alone."""
    first_run = run_of(case, setting, OBJECTIVES[0], run_ns)
    online = tuple(guest for guest in first_run.guests if guest.online)
    services = share(
        "mps",
        msgspec.structs.replace(shorten_warmup(first_run), guests=shorten_warmup(first_run).guests[: len(online)]),
    )
    fixed_modes = {mode: share(mode, first_run if mode in _ADAPT else shorten_warmup(first_run)) for mode in OTHERS}
    results, timelines = [], []
    for objective in OBJECTIVES:
        run = run_of(case, setting, objective, run_ns)
        outcomes = {mode: share(mode, run) for mode in OURS} | fixed_modes
        results.append(ark_result(case, run, objective, outcomes, services))
        if shown:
            timelines.append(_timeline(case, run, objective, outcomes))
    return DeviceRun(results=results, timelines=timelines)


def ark_result(
    case: ArkCase, run: RunSpec, objective: int, outcomes: Mapping[str, SharingOutcome], services: SharingOutcome
) -> ArkResult:
    """Evaluate the same requests in every mode."""
    alone = outcomes["exclusive"]
    ours = {mode: outcome for mode, outcome in outcomes.items() if mode in OURS}
    return ArkResult(
        name=case.name,
        load=case.load,
        level=case.level,
        objective=objective,
        slo_ms=run.guests[0].slo_ns / 1e6,
        requests=sum(_resolved_counts(run, alone)),
        modes={mode: mode_metrics(case, run, outcome, alone) for mode, outcome in outcomes.items()},
        turns={mode: sum(turn.at_ns >= run.warm_ns for turn in outcome.turns) for mode, outcome in ours.items()},
        services_only=min(
            result.attainment(guest.slo_ns) for guest, result in zip(run.guests, services.guests, strict=False)
        ),
        goodput_bound=goodput_bound(run, alone, services),
        share_mean={mode: _mean_share(outcome) for mode, outcome in ours.items()},
    )


def goodput_bound(run: RunSpec, alone: SharingOutcome, services: SharingOutcome) -> float:
    """Return an upper bound of the goodput of one device: SM time is conserved, and no request is late.

    `alone` has a device for each tenant, `services` the services together on one device, both in the same window.
    """
    online_sms = services.sm_ns / max(services.end_ns - services.begin_ns, 1)
    training_sms = max(alone.sm_ns / max(alone.end_ns - alone.begin_ns, 1) - online_sms, 1e-9)
    free_sms = max(run.setting.device.sm_count - online_sms, 0.0)
    return sum(guest.online for guest in run.guests) + min(free_sms / training_sms, 1.0)


def mode_metrics(case: ArkCase, run: RunSpec, outcome: SharingOutcome, alone: SharingOutcome) -> ModeMetrics:
    """Compute the metrics of one mode."""
    online = [
        (service, guest, result)
        for service, guest, result in zip(case.services, run.guests, outcome.guests, strict=False)
        if guest.online
    ]
    parts = [result.attainment(guest.slo_ns) for _, guest, result in online]
    counts = [result.count_within(guest.slo_ns) for _, guest, result in online]
    per_s = [result.within_per_s(guest.slo_ns) for _, guest, result in online]
    offline = outcome.guests[-1].done_ns / max(alone.guests[-1].done_ns, 1)
    span_ns = outcome.end_ns - outcome.begin_ns
    return ModeMetrics(
        attainment=sum(within for within, _ in counts) / max(sum(resolved for _, resolved in counts), 1),
        worst=min(parts),
        within_per_s=sum(per_s),
        p99_ratio=max(result.quantile_ns(ATTAINED) / service.p99_ns for service, _, result in online),
        service_ratio=max(
            statistics.median(result.services_ns() or [service.mean_ns]) / service.mean_ns
            for service, _, result in online
        ),
        is_bounded=all(result.is_bounded() for _, _, result in online),
        offline=offline,
        gpus=outcome.gpus,
        goodput=(sum(parts) + offline) / outcome.gpus,
        busy=outcome.busy_ns / (span_ns * outcome.gpus),
    )


def evaluate_cases(
    cases: Sequence[ArkCase], setting: RunSettings, workers: int, progress: Progress, *, run_ns: int = RUN_NS
) -> tuple[list[ArkResult], list[CaseTimeline]]:
    """Evaluate every case, independent of the number of workers; the first case of every load gets a timeline."""
    results: list[ArkResult] = []
    timelines: list[CaseTimeline] = []
    first = {case.load: case.name for case in reversed(cases)}
    shown = [case.name in first.values() for case in cases]
    progress(PART, 0, len(cases))
    with mapping(workers) as mapped:
        device_runs = mapped(_evaluate, cases, [setting] * len(cases), [run_ns] * len(cases), shown)
        for done, device_run in enumerate(device_runs, start=1):
            results += device_run.results
            timelines += device_run.timelines
            progress(PART, done, len(cases))
    return results, timelines


def _evaluate(case: ArkCase, setting: RunSettings, run_ns: int, shown: bool) -> DeviceRun:  # noqa: FBT001 - a column of a map
    return evaluate_case(case, setting, run_ns, shown=shown)


_Of = Callable[[ArkResult], float]


class GoodputLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Where `cotenant` loses goodput of the sum of all tenants on devices of their own: means over cases."""

    cases: str
    count: int
    missed: float
    """Requests beyond their objective."""
    contention: float
    """Speed that the training loses even in the mode in which it is fastest."""
    protection: float
    """Speed that it loses in addition under `cotenant`."""


class ArkSimulation(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all cases: distributions by metric, and by mode and metric."""

    cases: list[ArkResult]
    against: dict[str, Distribution]
    """Ratios of `cotenant` to others, as percentage increases."""
    none_within: int
    """Cases in which default MPS answered nothing within the objective; they count as one request."""
    modes: dict[str, dict[str, Distribution]]
    """`p99_ratio` is over the cases in which no queue grows."""
    unbounded: dict[str, int]
    """By mode: cases in which a service's queue grows."""
    attainable: int
    """Cases in which a dedicated device reaches the objective."""
    attained: dict[str, int]
    """By mode: in how many of these it reaches the objective, too."""
    by_load: dict[str, dict[str, Distribution]]
    losses: list[GoodputLoss]
    """Over all cases, and by objective, load and level."""


def simulated_of(results: Sequence[ArkResult]) -> ArkSimulation:
    """Summarize all cases."""
    reachable = [result for result in results if result.modes["exclusive"].worst >= ATTAINED]
    by_load: dict[str, list[ArkResult]] = {}
    for result in results:
        by_load.setdefault(result.load, []).append(result)
    return ArkSimulation(
        cases=list(results),
        against={name: distribution_of([metric(result) for result in results]) for name, metric in AGAINST.items()},
        none_within=sum(not result.modes["mps"].within_per_s for result in results),
        modes={
            mode: {
                name: distribution_of([metric(result, mode) for result in results]) for name, metric in _METRICS.items()
            }
            | _queued(results, mode)
            for mode in MODES
        },
        unbounded={mode: sum(not result.modes[mode].is_bounded for result in results) for mode in MODES},
        attainable=len(reachable),
        attained={mode: sum(result.modes[mode].worst >= ATTAINED for result in reachable) for mode in MODES},
        by_load={
            load: {
                name: distribution_of([metric(result) for result in load_results]) for name, metric in AGAINST.items()
            }
            for load, load_results in by_load.items()
        },
        losses=losses_of(results),
    )


def losses_of(results: Sequence[ArkResult]) -> list[GoodputLoss]:
    """Return the losses over all cases and over those of each objective, load and level."""
    groups: dict[str, list[ArkResult]] = {"all": list(results)}
    for result in results:
        for name in (f"{result.objective}x", result.load, f"{result.level:.0%}"):
            groups.setdefault(name, []).append(result)
    return [_loss(name, group) for name, group in groups.items() if group]


def _loss(name: str, results: Sequence[ArkResult]) -> GoodputLoss:
    ours = [result.modes["cotenant"] for result in results]
    fastest = [_fastest_offline(result) for result in results]
    services = [result.modes["exclusive"].gpus - 1 for result in results]
    missed = [count - (own.goodput - own.offline) for count, own in zip(services, ours, strict=True)]
    return GoodputLoss(
        cases=name,
        count=len(results),
        missed=round(statistics.fmean(missed), 4),
        contention=round(statistics.fmean(1 - offline for offline in fastest), 4),
        protection=round(
            statistics.fmean(offline - own.offline for offline, own in zip(fastest, ours, strict=True)), 4
        ),
    )


def _fastest_offline(result: ArkResult) -> float:
    """Return the training's speed in the mode on one device in which it is fastest."""
    return max(metrics.offline for mode, metrics in result.modes.items() if mode != "exclusive")


def _queued(results: Sequence[ArkResult], mode: str) -> dict[str, Distribution]:
    """Return the distribution of the p99 with queueing over the cases in which it does not depend on the duration."""
    bounded = [result.modes[mode].p99_ratio for result in results if result.modes[mode].is_bounded]
    return {"p99_ratio": distribution_of(bounded)} if bounded else {}


def _throughput(result: ArkResult) -> float:
    return _more(result, "cotenant", "mps")


def _more(result: ArkResult, mode: str, rival: str) -> float:
    """Return the increase of answers within the objective over a rival, which counts at least one."""
    one_request_per_s = result.modes["exclusive"].within_per_s / max(
        result.requests * result.modes["exclusive"].attainment, 1
    )
    return 100 * (result.modes[mode].within_per_s / max(result.modes[rival].within_per_s, one_request_per_s) - 1)


def _bound(result: ArkResult, rival: str) -> float:
    return 100 * (result.goodput_bound / max(result.modes[rival].goodput, 1e-9) - 1)


def _fastest(result: ArkResult, rival: str) -> float:
    """Return the increase if one device kept all objectives and the training was as fast as in its fastest mode there.

    Kernels that run together slow each other in every mode, which the bound by SM time does not contain.
    """
    services = result.modes["exclusive"].gpus - 1
    return 100 * ((services + _fastest_offline(result)) / max(result.modes[rival].goodput, 1e-9) - 1)


def _goodput(rival: str) -> _Of:
    def increase(result: ArkResult) -> float:
        return 100 * (result.modes["cotenant"].goodput / max(result.modes[rival].goodput, 1e-9) - 1)

    return increase


AGAINST: Final[dict[str, _Of]] = {
    "throughput_vs_mps_pct": _throughput,
    "goodput_vs_exclusive_pct": _goodput("exclusive"),
    "goodput_vs_mps_pct": _goodput("mps"),
    "throughput_vs_mps_priority_pct": lambda result: _more(result, "cotenant", "mps-priority"),
    "goodput_vs_mps_priority_pct": _goodput("mps-priority"),
    "throughput_bound_vs_mps_pct": lambda result: _more(result, "exclusive", "mps"),
    "goodput_bound_vs_exclusive_pct": lambda result: _bound(result, "exclusive"),
    "goodput_bound_vs_mps_pct": lambda result: _bound(result, "mps"),
    "goodput_fastest_vs_exclusive_pct": lambda result: _fastest(result, "exclusive"),
    "goodput_fastest_vs_mps_pct": lambda result: _fastest(result, "mps"),
}
_METRICS: Final[dict[str, Callable[[ArkResult, str], float]]] = {
    "attainment": lambda result, mode: result.modes[mode].attainment,
    "service_ratio": lambda result, mode: result.modes[mode].service_ratio,
    "offline": lambda result, mode: result.modes[mode].offline,
    "goodput": lambda result, mode: result.modes[mode].goodput,
    "busy": lambda result, mode: result.modes[mode].busy,
}


def _resolved_counts(run: RunSpec, outcome: SharingOutcome) -> list[int]:
    return [
        result.count_within(guest.slo_ns)[1]
        for guest, result in zip(run.guests, outcome.guests, strict=True)
        if guest.online
    ]


def _mean_share(outcome: SharingOutcome) -> float:
    """Return the mean share over the window; the time before the first change is omitted."""
    total = span = 0
    ends = [turn.at_ns for turn in outcome.turns[1:]] + [outcome.end_ns]
    for turn, end_ns in zip(outcome.turns, ends, strict=False):
        lasted_ns = max(end_ns - max(turn.at_ns, outcome.begin_ns), 0)
        total += lasted_ns * turn.online_ppm
        span += lasted_ns
    return total / span / 1e6 if span else 0.0


def _timeline(case: ArkCase, run: RunSpec, objective: int, outcomes: Mapping[str, SharingOutcome]) -> CaseTimeline:
    shown_modes = {mode: outcomes[mode] for mode in ("cotenant", "mps", "exclusive")}
    firsts = {mode: outcome.guests[0] for mode, outcome in shown_modes.items()}
    return CaseTimeline(
        name=case.name,
        objective=objective,
        slo_ms=run.guests[0].slo_ns / 1e6,
        begin_ns=run.warm_ns,
        end_ns=run.for_ns,
        turns=shown_modes["cotenant"].turns,
        latencies={
            mode: tuple(
                (due - result.begin_ns, end - due) for due, end in zip(result.dues_ns, result.ends_ns, strict=False)
            )
            for mode, result in firsts.items()
        },
        offline={mode: _progress_points(outcome.guests[-1], run.sample_ns) for mode, outcome in shown_modes.items()},
    )


def _progress_points(result: TenantResult, sample_ns: int) -> tuple[tuple[int, int], ...]:
    points = [((index + 1) * sample_ns - result.begin_ns, done) for index, done in enumerate(result.progress_ns)]
    base = next((done for at, done in reversed(points) if at <= 0), 0)
    return tuple((at, done - base) for at, done in points if at >= 0)
