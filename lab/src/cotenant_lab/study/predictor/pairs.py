"""Simulate a job and online work on one device, for many random cases.

In the mode `mps`, some cases split the SMs: the job is limited to a share and its only neighbour to the rest. Both
sides are then described by their use within the share, and speeds are relative to the program alone there.

Under time slices, as processes share an unmanaged GPU, they share a small host too: host time grows for each of them,
by up to as much as the others are active. The amount is random and not an input of the predictor.

A case depends on the seed and its number alone, so that cases can be simulated in parallel in any order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from cotenant.cluster.model.cluster import OnlineUse
from cotenant.predict.speed_features import Spot
from cotenant.predict.usage import TaskUse
from cotenant.softgpu.sim.device import OWN_GROUP, Device, DeviceConfig, ScriptClient, StreamKind, preset
from cotenant.units.share import WHOLE_PPM
from cotenant.workload.timeline import Timeline
from cotenant_lab.study.predictor.programs import LIMITS, RoundProgram, recorded, synthetic

ServingMode: TypeAlias = Literal["space", "mps", "time"]
MODES: Final[tuple[ServingMode, ...]] = ("space", "mps", "time")
_LAUNCHES: Final = 8_000
"""Approximate number of launches of a case."""
_REQUESTS: Final = 15
_TENANTS: Final = ((1, 2, 3, 4, 6, 9), (12, 4, 2, 1, 1, 1))
"""Number of online tenants, and probability; clients of one server, which share by MPS, are more."""
_CLIENTS: Final = ((1, 2, 3, 4, 6, 9), (8, 3, 2, 2, 2, 3))
_ROUNDS: Final = 6
_WIDE: Final = 0.3
"""Fraction of synthetic cases in which every kernel needs all SMs."""
_SPLIT: Final = 0.4
"""Fraction of the cases of two tenants under MPS in which each has its own SMs."""
_SPLIT_SHARES: Final = (0.15, 0.85)
_ABOVE: Final = (StreamKind.BLOCKING, -1)
_EQUAL: Final = (StreamKind.BLOCKING, 0)


class PairCase(msgspec.Struct, frozen=True):
    """Identifies a case; `streams` are recorded lists of kernels, empty: programs are synthetic."""

    mode: ServingMode
    number: int
    seed: int
    streams: dict[str, Timeline] = {}


class SimulatedPair(msgspec.Struct, frozen=True):
    """What was known before, and the result."""

    name: str
    job: TaskUse
    spot: Spot
    speed: float
    """Of the job, over that alone on the whole device."""
    slowdown: float
    """Of online work: mean time of a request with the job over that without, all tenants' requests equally weighted."""


def play(case: PairCase) -> SimulatedPair:
    """Simulate one case."""
    rng = random.Random(f"{case.seed}:{case.mode}:{case.number}")
    config = preset("v100")  # without contention, which the predictor's law adds
    tenants = rng.choices(*(_CLIENTS if case.mode == "mps" else _TENANTS))[0] if not case.streams else 1
    least = 1.0 if rng.random() < _WIDE else 0.0
    job, *others = (_program(rng, case.streams, config, least) for _ in range(tenants + 1))
    loads = [_load(rng) for _ in others]
    share = 1.0 if case.mode == "time" else rng.choice((1.0, *(rng.uniform(0.05, 1.0) for _ in range(3))))
    if case.mode == "mps" and rng.random() < 0.5:
        share = 1.0
    is_split = case.mode == "mps" and tenants == 1 and rng.random() < _SPLIT
    if is_split:
        share = rng.uniform(*_SPLIT_SHARES)
    speed, slowdown = _simulate(job, others, loads, share, case.mode, rng, config, is_split=is_split)
    name = f"{job.name} with {' and '.join(program.name for program in others)}"
    online_uses = [
        msgspec.structs.replace(program.use, active_ppm=max(1, round(load * WHOLE_PPM)))
        for program, load in zip(others, loads, strict=True)
    ]
    use, offer_ppm = job.use, max(1, round(share * WHOLE_PPM))
    if is_split:
        use, offer_ppm = job.use.within(share), WHOLE_PPM
        online_uses = [online_use.within(1 - share) for online_use in online_uses]
    online = tuple(OnlineUse(f"s{index}", online_use) for index, online_use in enumerate(online_uses))
    return SimulatedPair(name, use, Spot(online, offer_ppm), speed, slowdown)


def _program(rng: random.Random, streams: Mapping[str, Timeline], config: DeviceConfig, least: float) -> RoundProgram:
    if not streams:
        return synthetic(rng, "synthetic", config, least)
    name = rng.choice(sorted(streams))
    return recorded(rng, name, streams[name], config)


def _load(rng: random.Random) -> float:
    """Return the fraction of time in which a request is in progress, alone; 1: back to back."""
    return 1.0 if rng.random() < 0.35 else rng.uniform(0.03, 0.9)


def _simulate(
    job: RoundProgram,
    others: Sequence[RoundProgram],
    loads: Sequence[float],
    share: float,
    mode: ServingMode,
    rng: random.Random,
    config: DeviceConfig,
    *,
    is_split: bool = False,
) -> tuple[float, float]:
    span_ns = _span_ns(job, others, loads, share)
    group = OWN_GROUP if mode == "time" else 1
    host = rng.random() if mode == "time" else 0.0
    kernels = list(job.kernels)
    cap = round(share * config.sm_count) if share < 1 else 0
    others_cap = max(config.sm_count - cap, 1) if is_split else 0
    clients = [
        ScriptClient(
            steps=job.steps(0, 1 + host * min(sum(loads), 1.0)),
            repeats=_repeats(span_ns, job.alone_ns),
            group_label=group,
            sm_cap=max(cap, share < 1),
        )
    ]
    arrivals: list[tuple[int, ...] | None] = []
    for program, load in zip(others, loads, strict=True):
        own_arrivals = None if load >= 1 else _arrivals_ns(rng, program.alone_ns / load, span_ns)
        arrivals.append(own_arrivals)
        clients.append(
            ScriptClient(
                steps=program.steps(len(kernels), 1 + host),
                repeats=_repeats(span_ns, program.alone_ns) if own_arrivals is None else len(own_arrivals),
                arrivals_ns=own_arrivals,
                group_label=group,
                sm_cap=others_cap,
                streams=(_ABOVE if mode == "space" else _EQUAL,),
            )
        )
        kernels += program.kernels
    mine, *theirs = Device(config, LIMITS).run(kernels, clients, until_ns=span_ns)
    if is_split:
        (alone,) = Device(config, LIMITS).run(kernels, clients[:1], until_ns=span_ns)
        speed = mine.completions / max(alone.completions, 1)
    else:
        speed = mine.completions / len(job.kernels) * job.alone_ns / span_ns
    quiet = 1 + host * (len(others) > 1)  # without other programs the host is not shared
    first = len(job.kernels)
    by_themselves = []
    for client, program in zip(clients[1:], others, strict=True):
        by_themselves.append(msgspec.structs.replace(client, steps=program.steps(first, quiet)))
        first += len(program.kernels)
    baseline_results = Device(config, LIMITS).run(kernels, by_themselves, until_ns=span_ns)
    slowed = [
        (len(with_job), sum(with_job) / len(with_job) / (sum(without_job) / len(without_job)))
        for result, earlier, own_arrivals in zip(theirs, baseline_results, arrivals, strict=True)
        if (with_job := _times_ns(result.repeat_ends_ns, own_arrivals, span_ns))
        and (without_job := _times_ns(earlier.repeat_ends_ns, own_arrivals, span_ns))
    ]
    weight = sum(count for count, _ in slowed)
    slowdown = sum(count * slower for count, slower in slowed) / weight if weight else 1.0
    return min(max(speed, 1e-3), 1.0), max(slowdown, 1.0)


def _span_ns(job: RoundProgram, others: Sequence[RoundProgram], loads: Sequence[float], share: float) -> int:
    """Return a span with a few rounds and requests of each, limited by the number of launches."""
    needed_ns = max(
        _ROUNDS * job.alone_ns / max(share, 0.1),
        *(_REQUESTS * program.alone_ns / load for program, load in zip(others, loads, strict=True)),
    )
    per_ns = len(job.kernels) / job.alone_ns
    per_ns += sum(load * len(program.kernels) / program.alone_ns for program, load in zip(others, loads, strict=True))
    return round(min(4 * needed_ns, 4 * _LAUNCHES / per_ns, max(_LAUNCHES / per_ns, needed_ns)))


def _repeats(span_ns: int, alone_ns: float) -> int:
    return int(span_ns // alone_ns) + 2


def _arrivals_ns(rng: random.Random, every_ns: float, span_ns: int) -> tuple[int, ...]:
    """Return random arrivals, the first one within the span."""
    arrivals: list[int] = []
    instant = rng.uniform(0, min(every_ns, span_ns / 2))
    while instant < span_ns or not arrivals:
        arrivals.append(round(instant))
        instant += rng.expovariate(1 / every_ns)
    return tuple(arrivals)


def _times_ns(ends_ns: Sequence[int], arrivals_ns: Sequence[int] | None, span_ns: int) -> list[float]:
    """Return the time of each request, from the later of its arrival and the end of the previous one."""
    times, previous_end_ns = [], 0
    for index, end_ns in enumerate(ends_ns):
        if not 0 < end_ns <= span_ns:
            break
        begin_ns = previous_end_ns if arrivals_ns is None else max(previous_end_ns, arrivals_ns[index])
        times.append(float(end_ns - begin_ns))
        previous_end_ns = end_ns
    return times
