"""What becomes of a job and of online work on one device? Played on the device model, as many as are asked for.

With time slices, as processes share a GPU that nobody manages, they share a small host too: what is the host's takes
longer for each, by up to as much as the others are active. How much is a matter of chance that nobody is told of.

A case depends on the seed and its number alone, so that cases can be played side by side in any order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from cotenant.domain.cluster import OnlineUse
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.timeline import Timeline
from cotenant.domain.use import TaskUse
from cotenant.experiment.lab.speed_programs import LIMITS, Program, made_up, recorded
from cotenant.policy.predict.speed_facts import Spot
from cotenant.sim.device import OWN_GROUP, Device, DeviceConfig, ScriptClient, StreamKind, preset

Way: TypeAlias = Literal["space", "mps", "time"]
WAYS: Final[tuple[Way, ...]] = ("space", "mps", "time")
_LAUNCHES: Final = 8_000
"""About so many in a case, whatever it is of."""
_REQUESTS: Final = 15
_TENANTS: Final = ((1, 2, 3, 4, 6, 9), (12, 4, 2, 1, 1, 1))
"""How many are online, and how often; clients of one server, which share by MPS, are more."""
_CLIENTS: Final = ((1, 2, 3, 4, 6, 9), (8, 3, 2, 2, 2, 3))
_ROUNDS: Final = 6
_WIDE: Final = 0.3
"""Of the made-up cases, those in which every kernel of everybody wants all SMs."""
_ABOVE: Final = (StreamKind.BLOCKING, -1)
_EQUAL: Final = (StreamKind.BLOCKING, 0)


class Question(msgspec.Struct, frozen=True):
    """Which case, of what; `streams` are the recorded lists of kernels, none: programs are made up."""

    way: Way
    number: int
    seed: int
    streams: dict[str, Timeline] = {}


class Pair(msgspec.Struct, frozen=True):
    """What was known before, and what came of it."""

    name: str
    job: TaskUse
    spot: Spot
    speed: float
    """Of the job, over that alone on the whole device."""
    slowdown: float
    """Of online work: mean time of a request with the job there over that without, all tenants' requests alike."""


def play(question: Question) -> Pair:
    """One case."""
    dice = random.Random(f"{question.seed}:{question.way}:{question.number}")
    config = preset("v100")
    tenants = dice.choices(*(_CLIENTS if question.way == "mps" else _TENANTS))[0] if not question.streams else 1
    least = 1.0 if dice.random() < _WIDE else 0.0
    job, *others = (_program(dice, question.streams, config, least) for _ in range(tenants + 1))
    loads = [_load(dice) for _ in others]
    share = 1.0 if question.way == "time" else dice.choice((1.0, *(dice.uniform(0.05, 1.0) for _ in range(3))))
    if question.way == "mps" and dice.random() < 0.5:
        share = 1.0
    speed, slowdown = _together(job, others, loads, share, question.way, dice, config)
    online = tuple(
        OnlineUse(f"s{place}", msgspec.structs.replace(one.use, active_ppm=max(1, round(load * WHOLE_PPM))))
        for place, (one, load) in enumerate(zip(others, loads, strict=True))
    )
    name = f"{job.name} beside {' and '.join(one.name for one in others)}"
    return Pair(name, job.use, Spot(online, max(1, round(share * WHOLE_PPM))), speed, slowdown)


def _program(dice: random.Random, streams: Mapping[str, Timeline], config: DeviceConfig, least: float) -> Program:
    if not streams:
        return made_up(dice, "made up", config, least)
    name = dice.choice(sorted(streams))
    return recorded(dice, name, streams[name], config)


def _load(dice: random.Random) -> float:
    """Part of the time in which a request is under way, alone; 1: one follows the other."""
    return 1.0 if dice.random() < 0.35 else dice.uniform(0.03, 0.9)


def _together(
    job: Program,
    others: Sequence[Program],
    loads: Sequence[float],
    share: float,
    way: Way,
    dice: random.Random,
    config: DeviceConfig,
) -> tuple[float, float]:
    span_ns = _span_ns(job, others, loads, share)
    group = OWN_GROUP if way == "time" else 1
    host = dice.random() if way == "time" else 0.0
    kernels = list(job.kernels)
    cap = round(share * config.sm_count) if share < 1 else 0
    clients = [
        ScriptClient(
            steps=job.steps(0, 1 + host * min(sum(loads), 1.0)),
            repeats=_repeats(span_ns, job.alone_ns),
            group_label=group,
            sm_cap=max(cap, share < 1),
        )
    ]
    arrivals: list[tuple[int, ...] | None] = []
    for one, load in zip(others, loads, strict=True):
        asked = None if load >= 1 else _arrivals_ns(dice, one.alone_ns / load, span_ns)
        arrivals.append(asked)
        clients.append(
            ScriptClient(
                steps=one.steps(len(kernels), 1 + host),
                repeats=_repeats(span_ns, one.alone_ns) if asked is None else len(asked),
                arrivals_ns=asked,
                group_label=group,
                streams=(_ABOVE if way == "space" else _EQUAL,),
            )
        )
        kernels += one.kernels
    mine, *theirs = Device(config, LIMITS).run(kernels, clients, until_ns=span_ns)
    speed = mine.completions / len(job.kernels) * job.alone_ns / span_ns
    quiet = 1 + host * (len(others) > 1)  # a small host is one's own, if nobody else is there
    first = len(job.kernels)
    by_themselves = []
    for client, one in zip(clients[1:], others, strict=True):
        by_themselves.append(msgspec.structs.replace(client, steps=one.steps(first, quiet)))
        first += len(one.kernels)
    without = Device(config, LIMITS).run(kernels, by_themselves, until_ns=span_ns)
    slowed = [
        (len(then), sum(then) / len(then) / (sum(before) / len(before)))
        for result, earlier, asked in zip(theirs, without, arrivals, strict=True)
        if (then := _times_ns(result.repeat_ends_ns, asked, span_ns))
        and (before := _times_ns(earlier.repeat_ends_ns, asked, span_ns))
    ]
    weight = sum(count for count, _ in slowed)
    slowdown = sum(count * slower for count, slower in slowed) / weight if weight else 1.0
    return min(max(speed, 1e-3), 1.0), max(slowdown, 1.0)


def _span_ns(job: Program, others: Sequence[Program], loads: Sequence[float], share: float) -> int:
    """Long enough for a few rounds and requests of each, if that is not too many launches in all."""
    wanted_ns = max(
        _ROUNDS * job.alone_ns / max(share, 0.1),
        *(_REQUESTS * one.alone_ns / load for one, load in zip(others, loads, strict=True)),
    )
    per_ns = len(job.kernels) / job.alone_ns
    per_ns += sum(load * len(one.kernels) / one.alone_ns for one, load in zip(others, loads, strict=True))
    return round(min(4 * wanted_ns, 4 * _LAUNCHES / per_ns, max(_LAUNCHES / per_ns, wanted_ns)))


def _repeats(span_ns: int, alone_ns: float) -> int:
    return int(span_ns // alone_ns) + 2


def _arrivals_ns(dice: random.Random, every_ns: float, span_ns: int) -> tuple[int, ...]:
    """At random, the first one within the span."""
    found: list[int] = []
    instant = dice.uniform(0, min(every_ns, span_ns / 2))
    while instant < span_ns or not found:
        found.append(round(instant))
        instant += dice.expovariate(1 / every_ns)
    return tuple(found)


def _times_ns(ends_ns: Sequence[int], arrivals_ns: Sequence[int] | None, span_ns: int) -> list[float]:
    """Of each request, from the later of its arrival and the end of the one before."""
    found, before_ns = [], 0
    for place, end_ns in enumerate(ends_ns):
        if not 0 < end_ns <= span_ns:
            break
        begun_ns = before_ns if arrivals_ns is None else max(before_ns, arrivals_ns[place])
        found.append(float(end_ns - begun_ns))
        before_ns = end_ns
    return found
