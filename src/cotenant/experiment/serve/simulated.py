"""What do so many models get from one device under a policy? A server's own machine on a device that only computes.

    models = [ServedModel("resnet50", times, slo_ns=60_000_000), ...]
    setting = Setting(all_units=100, for_ns=2 * SECOND_NS)
    arrivals = arrivals_of({"resnet50": poisson(300.0), ...}, models, setting)
    outcome = play(models, arrivals, way_of("dstack"), setting)

`play` is a function of its arguments. What is counted are the requests that arrive in the `for_ns` after `warm_ns`;
more come before and after, so that neither an empty nor a deserted device is judged. Every request has one row.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.domain.rhythm import Rhythm, bursty, rescaled, steady
from cotenant.domain.runtimes import RunTimes
from cotenant.domain.serving import Arrived, ModelReady, ModelSpec, Run
from cotenant.experiment.serve.fairness import jain
from cotenant.experiment.serve.ways import Way
from cotenant.machine.server import ServerMachine, ServerSettings
from cotenant.sim.arrivals import instants_of
from cotenant.sim.loop import SimLoop
from cotenant.sim.physics.runs import RunSpeeds
from cotenant.sim.serve import RunEnds, SimServing
from cotenant.sim.serve_device import SharedDevice

NOISE: Final = 0.02
"""Deviation of how long equal runs take, where nothing was measured. Our choice."""
HIGH: Final = 2.33
"""Deviations above the mean that one run in a hundred exceeds."""
_MANY: Final = 1 << 40
_BURST_RATIO: Final = 4.0

Arrivals: TypeAlias = Mapping[str, Sequence[Instant]]
"""By model: when its requests come, ascending."""


class ServedModel(msgspec.Struct, frozen=True):
    """A model, what is wanted of it and what its runs take."""

    name: str
    times: RunTimes
    """As the server believes."""
    slo_ns: Duration
    weight: int = 1
    max_batch: int = 0
    """Zero: the largest that was measured."""
    truth: RunTimes | None = None
    """As runs are; as believed, if not given."""

    @property
    def batch_limit(self) -> int:
        """Rows that may go into one run."""
        return self.max_batch or max(self.times.batches())


class Setting(msgspec.Struct, frozen=True):
    """The device, and for how long it is watched."""

    all_units: int
    for_ns: Duration
    warm_ns: Duration = SECOND_NS // 2
    seed: int = 0
    noise: float = NOISE


class ModelOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one model's requests came to: `offered` = `refused` + `dropped` + `in_time` + `late`."""

    name: str
    offered: int
    refused: int
    """At once."""
    dropped: int
    """Taken, and given up before they ran."""
    in_time: int
    late: int
    """Answered after the objective, or not by twice the longest objective after the last that counts."""
    p50_ms: float
    p99_ms: float
    """Of those that were answered."""
    device_part: float
    """Of the space-time of the device, what its runs had."""

    @property
    def admitted(self) -> int:
        """Taken, whatever came of them."""
        return self.offered - self.refused


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What all came to."""

    way: str
    models: list[ModelOutcome]
    offered_per_s: float
    goodput_per_s: float
    """Answered in time."""
    answered_per_s: float
    attainment_admitted: float
    """Of those taken, what was answered in time; 1 if none was taken."""
    missed: float
    """Of those offered, what was not answered in time, refused or not."""
    held: float
    """Of the device's space-time, what runs had."""
    utilization: float
    """Of it, what runs could put to use: a run on more units than its knee uses those up to the knee."""
    fairness: float
    """Jain's index of the part of each model's requests that was in time."""
    device_fairness: float
    """Jain's index of each model's space-time by its weight."""
    mean_batch: float


def poisson(rate_per_s: float) -> Rhythm:
    """Requests at random instants."""
    return steady(rate_per_s)


def in_bursts(rate_per_s: float) -> Rhythm:
    """With this mean; four times as dense for a fifth of the time, in stretches of 0.2 s in the mean. Ours."""
    return bursty(rate_per_s, _BURST_RATIO, SECOND_NS * 4 // 5, SECOND_NS // 5)


def arrivals_of(rhythms: Mapping[str, Rhythm], models: Sequence[ServedModel], setting: Setting) -> Arrivals:
    """As long as it is watched, and longer by the longest objective; a stream of chance for each model."""
    until_ns = _until(models, setting)
    return {
        name: instants_of(rhythm, until_ns, hash_of(setting.seed, place))
        for place, (name, rhythm) in enumerate(rhythms.items())
    }


def recorded(
    instants: Arrivals, rates: Mapping[str, float], models: Sequence[ServedModel], setting: Setting
) -> Arrivals:
    """As somebody recorded, pressed or stretched to these rates: bursts keep their shape."""
    until_ns = _until(models, setting)
    return {name: rescaled(instants[name], rate, until_ns) for name, rate in rates.items()}


def hash_of(seed: int, place: int) -> int:
    """A seed of its own for each."""
    return seed * 1_000_003 + place


def _until(models: Sequence[ServedModel], setting: Setting) -> Instant:
    return setting.warm_ns + setting.for_ns + max(model.slo_ns for model in models)


def play(models: Sequence[ServedModel], arrivals: Arrivals, way: Way, setting: Setting) -> Outcome:
    """Every request to its end, as far as it comes to one in time."""
    loop = SimLoop()
    speeds = {model.name: RunSpeeds(model.truth or model.times) for model in models}
    device = _Watched(loop, speeds, setting)
    settings = ServerSettings(
        setting.all_units, pinned=False, schedule=way.schedule, admit=way.admit, requests_limit=_MANY
    )
    world = SimServing(loop, ServerMachine(settings), device)
    for key, model in enumerate(models, 1):
        world.at(0, ModelReady(_spec(model, way), key, model.times))
    came = sorted((when, place, model.name) for place, model in enumerate(models) for when in arrivals[model.name])
    for request, (when, _, name) in enumerate(came, 1):
        world.at(when, Arrived(request, name, 1, 0))
    begin, end = setting.warm_ns, setting.warm_ns + setting.for_ns
    loop.run(begin)
    before = device.counted(begin)
    loop.run(end)
    after = device.counted(end)
    loop.run(end + 2 * max(model.slo_ns for model in models))
    return _outcome(models, came, world, device, (before, after), way, setting)


def _spec(model: ServedModel, way: Way) -> ModelSpec:
    return ModelSpec(
        name=model.name,
        version="1",
        platform="simulated",
        inputs=(),
        outputs=(),
        max_batch=model.batch_limit,
        share=model.times.knee_units,
        slo_ns=model.slo_ns if way.knows_slo else 0,
        weight=model.weight,
        queue_limit=_MANY,
    )


class _Watched:
    """A device, and how large the batches on it were."""

    def __init__(self, loop: SimLoop, speeds: Mapping[str, RunSpeeds], setting: Setting) -> None:
        self._device = SharedDevice(loop, speeds, setting.all_units, setting.noise, hash_of(setting.seed, -1))
        self.runs = 0
        self.rows = 0

    def begin(self, run: Run, ends: RunEnds) -> None:
        self.runs += 1
        self.rows += run.rows
        self._device.begin(run, ends)

    def counted(self, now: Instant) -> tuple[dict[str, float], float]:
        self._device.settle(now)
        return dict(self._device.had_ns), self._device.useful_ns


def _outcome(
    models: Sequence[ServedModel],
    came: Sequence[tuple[Instant, int, str]],
    world: SimServing,
    device: _Watched,
    counted: tuple[tuple[dict[str, float], float], tuple[dict[str, float], float]],
    way: Way,
    setting: Setting,
) -> Outcome:
    (had_before, useful_before), (had_after, useful_after) = counted
    whole_ns = float(setting.all_units * setting.for_ns)
    parts = {name: (had_after[name] - had_before[name]) / whole_ns for name in had_after}
    begin, end = setting.warm_ns, setting.warm_ns + setting.for_ns
    by_model: dict[str, list[tuple[int, Instant]]] = {model.name: [] for model in models}
    for request, (when, _, name) in enumerate(came, 1):
        if begin <= when < end:
            by_model[name].append((request, when))
    found = [_judged(model, by_model[model.name], world, parts[model.name]) for model in models]
    offered = sum(one.offered for one in found)
    in_time = sum(one.in_time for one in found)
    admitted = sum(one.admitted for one in found)
    for_s = setting.for_ns / SECOND_NS
    answered = sum(begin <= when < end for when in world.answered.values())
    return Outcome(
        way=way.name,
        models=found,
        offered_per_s=offered / for_s,
        goodput_per_s=in_time / for_s,
        answered_per_s=answered / for_s,
        attainment_admitted=in_time / admitted if admitted else 1.0,
        missed=1 - in_time / offered if offered else 0.0,
        held=sum(parts.values()),
        utilization=(useful_after - useful_before) / whole_ns,
        fairness=jain([one.in_time / one.offered for one in found if one.offered]),
        device_fairness=jain([parts[model.name] / model.weight for model in models]),
        mean_batch=device.rows / device.runs if device.runs else 0.0,
    )


def _judged(
    model: ServedModel, requests: Sequence[tuple[int, Instant]], world: SimServing, device_part: float
) -> ModelOutcome:
    refused = dropped = 0
    took: list[int] = []
    for request, when in requests:
        answered = world.answered.get(request)
        if answered is not None:
            took.append(answered - when)
        elif (refused_at := world.refused_at.get(request)) is not None:
            refused += refused_at == when
            dropped += refused_at != when
    in_time = sum(one <= model.slo_ns for one in took)
    return ModelOutcome(
        name=model.name,
        offered=len(requests),
        refused=refused,
        dropped=dropped,
        in_time=in_time,
        late=len(requests) - refused - dropped - in_time,
        p50_ms=statistics.median(took) / 1e6 if took else 0.0,
        p99_ms=sorted(took)[min(len(took) * 99 // 100, len(took) - 1)] / 1e6 if took else 0.0,
        device_part=device_part,
    )
