"""Simulate a server with several models on one device under a policy.

    models = [ServedModel("resnet50", times, slo_ns=60_000_000), ...]
    setting = Setting(all_units=100, for_ns=2 * SECOND_NS)
    arrivals = arrivals_of({"resnet50": poisson(300.0), ...}, models, setting)
    outcome = play(models, arrivals, mode_of("dstack"), setting)

`play` depends on its arguments alone. Requests that arrive in the `for_ns` after `warm_ns` are counted; more arrive
before and after, so that the device is neither empty nor idle at the ends. Every request has one row.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.runner.sim_loop import SimLoop
from cotenant.serve.model.event import ModelReady, ModelSpec, RequestArrived, Run
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.sim.device import SharedDevice
from cotenant.serve.sim.run_speed import RunSpeeds
from cotenant.serve.sim.server import RunEnded, SimServer
from cotenant.serve.state.server import ServerMachine, ServerSettings
from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant.workload.arrivals import draw_instants
from cotenant.workload.rates import RateProcess, bursty_rate, constant_rate, rescale_trace
from cotenant_lab.serving.fairness import jain
from cotenant_lab.serving.modes import ServingMode

NOISE: Final = 0.02
"""Relative standard deviation of equal runs, if none was measured. Our choice."""
CONTENTION: Final = 1.09
"""Slowdown of a run while others are active: the median of iGniter's pairs with split SM shares (V100)."""
HIGH: Final = 2.33
"""Standard deviations over the mean that one run in a hundred exceeds."""
_MANY: Final = 1 << 40
_BURST_RATIO: Final = 4.0

Arrivals: TypeAlias = Mapping[str, Sequence[Instant]]
"""By model: arrival instants, ascending."""


class ServedModel(msgspec.Struct, frozen=True):
    """A model, its objective and its run times."""

    name: str
    times: RunTimes
    """As the server assumes."""
    slo_ns: Duration
    weight: int = 1
    max_batch: int = 0
    """0: the largest measured batch."""
    truth: RunTimes | None = None
    """True run times; None: as the server assumes."""

    @property
    def batch_limit(self) -> int:
        """Return the maximum rows of one run."""
        return self.max_batch or max(self.times.batches())


class Setting(msgspec.Struct, frozen=True):
    """The device, and the measured window."""

    all_units: int
    for_ns: Duration
    warm_ns: Duration = SECOND_NS // 2
    seed: int = 0
    noise: float = NOISE
    contention: float = CONTENTION
    """Slowdown of a run while others are active."""
    interference: float = 1.0
    """The same as the server assumes it for runs on a part of the device, until its runs show another value."""


class ModelOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one model: `offered` = `refused` + `dropped` + `in_time` + `late`."""

    name: str
    offered: int
    refused: int
    """Before their objective had passed, on arrival or while they waited."""
    dropped: int
    """Refused after their objective."""
    in_time: int
    late: int
    """Answered after the objective, or not within twice the longest objective after the last counted arrival."""
    p50_ms: float
    p99_ms: float
    """Of answered requests."""
    device_part: float
    """Fraction of the device's space-time that its runs had."""

    @property
    def admitted(self) -> int:
        """Return the requests that were not refused within their objective."""
        return self.offered - self.refused


class ServingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all models."""

    mode: str
    models: list[ModelOutcome]
    offered_per_s: float
    goodput_per_s: float
    """Answered in time."""
    answered_per_s: float
    attainment_admitted: float
    """Fraction of the requests not refused within their objective that were answered in time; 1 if there are none."""
    missed: float
    """Fraction of offered requests not answered in time, refused or not."""
    held: float
    """Fraction of the device's space-time that runs had."""
    utilization: float
    """The part of it that runs could use: a run on more units than its knee uses those up to the knee."""
    fairness: float
    """Jain's index of the fractions of requests in time by model."""
    device_fairness: float
    """Jain's index of each model's space-time by its weight."""
    mean_batch: float


def poisson(rate_per_s: float) -> RateProcess:
    """Return Poisson arrivals."""
    return constant_rate(rate_per_s)


def in_bursts(rate_per_s: float) -> RateProcess:
    """Return bursty arrivals with this mean: four times as dense for a fifth of the time, in bursts of 0.2 s. Ours."""
    return bursty_rate(rate_per_s, _BURST_RATIO, SECOND_NS * 4 // 5, SECOND_NS // 5)


def arrivals_of(rhythms: Mapping[str, RateProcess], models: Sequence[ServedModel], setting: Setting) -> Arrivals:
    """Draw arrivals for the window plus the longest objective, with a random stream for each model."""
    until_ns = _end_of_arrivals(models, setting)
    return {
        name: draw_instants(rhythm, until_ns, hash_of(setting.seed, index))
        for index, (name, rhythm) in enumerate(rhythms.items())
    }


def recorded(
    instants: Arrivals, rates: Mapping[str, float], models: Sequence[ServedModel], setting: Setting
) -> Arrivals:
    """Return recorded arrivals, rescaled to these rates; bursts keep their shape."""
    until_ns = _end_of_arrivals(models, setting)
    return {name: rescale_trace(instants[name], rate, until_ns) for name, rate in rates.items()}


def hash_of(seed: int, index: int) -> int:
    """Return a separate seed for each."""
    return seed * 1_000_003 + index


def _end_of_arrivals(models: Sequence[ServedModel], setting: Setting) -> Instant:
    return setting.warm_ns + setting.for_ns + max(model.slo_ns for model in models)


def play(models: Sequence[ServedModel], arrivals: Arrivals, mode: ServingMode, setting: Setting) -> ServingOutcome:
    """Simulate every request that can end in time."""
    loop = SimLoop()
    speeds = {model.name: RunSpeeds(model.truth or model.times) for model in models}
    device = _RecordingDevice(loop, speeds, setting)
    settings = ServerSettings(
        setting.all_units,
        pinned=False,
        schedule=mode.schedule,
        admit=mode.admit,
        requests_limit=_MANY,
        interference=setting.interference,
    )
    world = SimServer(loop, ServerMachine(settings), device)
    for key, model in enumerate(models, 1):
        world.at(0, ModelReady(_spec(model, mode), key, model.times))
    arrivals_in_order = sorted(
        (when, index, model.name) for index, model in enumerate(models) for when in arrivals[model.name]
    )
    for request, (when, _, name) in enumerate(arrivals_in_order, 1):
        world.at(when, RequestArrived(request, name, 1, 0))
    begin, end = setting.warm_ns, setting.warm_ns + setting.for_ns
    loop.run(begin)
    begin_use = device.used_unit_ns(begin)
    loop.run(end)
    end_use = device.used_unit_ns(end)
    loop.run(end + 2 * max(model.slo_ns for model in models))
    return _outcome(models, arrivals_in_order, world, device, (begin_use, end_use), mode, setting)


def _spec(model: ServedModel, mode: ServingMode) -> ModelSpec:
    return ModelSpec(
        name=model.name,
        version="1",
        platform="simulated",
        inputs=(),
        outputs=(),
        max_batch=model.batch_limit,
        share=model.times.knee_units,
        slo_ns=model.slo_ns if mode.knows_slo else 0,
        weight=model.weight,
        queue_limit=_MANY,
    )


class _RecordingDevice:
    """A device that records batch sizes."""

    def __init__(self, loop: SimLoop, speeds: Mapping[str, RunSpeeds], setting: Setting) -> None:
        self._device = SharedDevice(
            loop, speeds, setting.all_units, setting.noise, hash_of(setting.seed, -1), setting.contention
        )
        self.runs = 0
        self.rows = 0

    def begin(self, run: Run, ends: RunEnded) -> None:
        self.runs += 1
        self.rows += run.rows
        self._device.begin(run, ends)

    def used_unit_ns(self, now: Instant) -> tuple[dict[str, float], float]:
        self._device.settle(now)
        return dict(self._device.used_unit_ns), self._device.useful_unit_ns


def _outcome(
    models: Sequence[ServedModel],
    arrivals_in_order: Sequence[tuple[Instant, int, str]],
    world: SimServer,
    device: _RecordingDevice,
    used_unit_ns: tuple[tuple[dict[str, float], float], tuple[dict[str, float], float]],
    mode: ServingMode,
    setting: Setting,
) -> ServingOutcome:
    (had_before, useful_before), (had_after, useful_after) = used_unit_ns
    whole_ns = float(setting.all_units * setting.for_ns)
    parts = {name: (had_after[name] - had_before[name]) / whole_ns for name in had_after}
    begin, end = setting.warm_ns, setting.warm_ns + setting.for_ns
    by_model: dict[str, list[tuple[int, Instant]]] = {model.name: [] for model in models}
    for request, (when, _, name) in enumerate(arrivals_in_order, 1):
        if begin <= when < end:
            by_model[name].append((request, when))
    outcomes = [_model_outcome(model, by_model[model.name], world, parts[model.name]) for model in models]
    offered = sum(outcome.offered for outcome in outcomes)
    in_time = sum(outcome.in_time for outcome in outcomes)
    admitted = sum(outcome.admitted for outcome in outcomes)
    for_s = setting.for_ns / SECOND_NS
    answered = sum(begin <= when < end for when in world.answered.values())
    return ServingOutcome(
        mode=mode.name,
        models=outcomes,
        offered_per_s=offered / for_s,
        goodput_per_s=in_time / for_s,
        answered_per_s=answered / for_s,
        attainment_admitted=in_time / admitted if admitted else 1.0,
        missed=1 - in_time / offered if offered else 0.0,
        held=sum(parts.values()),
        utilization=(useful_after - useful_before) / whole_ns,
        fairness=jain([outcome.in_time / outcome.offered for outcome in outcomes if outcome.offered]),
        device_fairness=jain([parts[model.name] / model.weight for model in models]),
        mean_batch=device.rows / device.runs if device.runs else 0.0,
    )


def _model_outcome(
    model: ServedModel, requests: Sequence[tuple[int, Instant]], world: SimServer, device_part: float
) -> ModelOutcome:
    refused = dropped = 0
    latencies: list[int] = []
    for request, when in requests:
        answered = world.answered.get(request)
        if answered is not None:
            latencies.append(answered - when)
        elif (refused_at := world.refused_at.get(request)) is not None:
            is_late = refused_at > when + model.slo_ns
            refused += not is_late
            dropped += is_late
    in_time = sum(latency <= model.slo_ns for latency in latencies)
    return ModelOutcome(
        name=model.name,
        offered=len(requests),
        refused=refused,
        dropped=dropped,
        in_time=in_time,
        late=len(requests) - refused - dropped - in_time,
        p50_ms=statistics.median(latencies) / 1e6 if latencies else 0.0,
        p99_ms=sorted(latencies)[min(len(latencies) * 99 // 100, len(latencies) - 1)] / 1e6 if latencies else 0.0,
        device_part=device_part,
    )
