"""Simulate pairs of recorded kernel lists on the device model, with their use measured alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.predict.kernel_scaling import stretch, widths
from cotenant.predict.slowdown import Use, slowdowns
from cotenant.profile.profile import Profile
from cotenant.softgpu.costs import hardware
from cotenant.softgpu.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step
from cotenant.units.estimate import Estimate
from cotenant.workload.timeline import Timeline, profile_of
from cotenant_lab.physics.stream import kernel_of
from cotenant_lab.study.predictor_node.co_location import TenantGroup
from cotenant_lab.study.predictor_node.comparison import PredictionCase
from cotenant_lab.study.predictor_node.latency import ADDITIVE, CONSTANT

_LAUNCH_NS: Final = 5_000
_TURNS_OF_LONGEST: Final = 6
_LIMITS: Final = Limits(clients=4, contexts=4, streams=4, events=1, ops=65536, records=64)


SHARES: Final = (0.25, 0.5, 0.75)
"""Share of the first of two programs; the other one gets the remainder."""


class _Program(msgspec.Struct, frozen=True):
    name: str
    kernels: list[Kernel]
    alone_ns: float
    use: Use
    profile: Profile


def pairs_on_the_model(streams: Mapping[str, Timeline]) -> list[TenantGroup]:
    """Return every two programs in one MPS group, requests or steps back to back."""
    config = hardware("v100")
    programs = [_program(name, stream, config) for name, stream in sorted(streams.items())]
    groups = []
    for pair in itertools.combinations_with_replacement(programs, 2):
        slower = _slowdowns_of(pair, config, (1.0, 1.0))
        names = tuple(program.name for program in pair)
        families = tuple(_family(name) for name in names)
        groups.append(
            TenantGroup(" + ".join(names), "mps", tuple(program.use for program in pair), names, families, slower)
        )
    return groups


def split_cases(streams: Mapping[str, Timeline]) -> list[PredictionCase]:
    """Return inference and training, each within its part of the SMs: share and neighbour at once, nothing fitted.

    The time together in a share over the time alone on the whole device. The constant predictor is the median of the
    pairs without the program; additive utilization is slowed down if more of the SMs are used on average than the share
    has.
    """
    config = hardware("v100")
    programs = [_program(name, stream, config) for name, stream in sorted(streams.items())]
    outcomes: list[tuple[str, str, Estimate, float, float]] = []
    for online, offline in itertools.product(programs, programs):
        if not (online.name.endswith("_fwd") and offline.name.endswith("_fb1")):
            continue
        for share in SHARES:
            pair, shares = (online, offline), (share, 1 - share)
            slower = _slowdowns_of(pair, config, shares)
            slowed_by = slowdowns([program.use.within(part) for program, part in zip(pair, shares, strict=True)])
            for program, part, slowed, measured in zip(pair, shares, slowed_by, slower, strict=True):
                predicted = stretch(program.profile, part, config.sm_count).by(slowed)
                name = f"{online.name} at {share:.0%} + {offline.name}: {program.name}"
                needed = program.use.duty * sum(width * time for width, time in program.use.widths)
                outcomes.append((name, _family(program.name), predicted, measured, max(1.0, needed / part)))
    cases = []
    for name, family, predicted, measured, adds_up in outcomes:
        other_slowdowns = [slowdown for _, other_family, _, slowdown, _ in outcomes if other_family != family] or [1.0]
        cases.append(
            PredictionCase(name, predicted, measured, {CONSTANT: statistics.median(other_slowdowns), ADDITIVE: adds_up})
        )
    return cases


def _family(name: str) -> str:
    return name.split("_", maxsplit=1)[0]


def _program(name: str, stream: Timeline, config: DeviceConfig) -> _Program:
    """Return a program with a profile of its kernels and the device's counters of a run alone."""
    kernels = [kernel_of(activity, config) for activity in stream.activities]
    device = Device(config, _LIMITS)
    (result,) = device.run(kernels, [_client(kernels, 0, 3)])
    alone_ns = _mean_ns(result.repeat_ends_ns, 10**18)
    counters = device.count()
    profile = profile_of(stream)
    use = Use(
        duty=min(1.0, counters.busy_ns / result.repeat_ends_ns[-1]),
        widths=widths(profile, config.sm_count),
        memory=min(1.0, counters.traffic_bytes / (counters.busy_ns * config.memory_bytes_per_s / 1e9)),
        kernel_ns=profile.device_ns / len(kernels),
    )
    measured = msgspec.structs.replace(profile, span_ns=round(alone_ns), busy_ns=round(use.duty * alone_ns))
    return _Program(name, kernels, alone_ns, use, measured)


def _slowdowns_of(pair: Sequence[_Program], config: DeviceConfig, shares: Sequence[float]) -> tuple[float, ...]:
    span_ns = round(
        max(_TURNS_OF_LONGEST * program.alone_ns / share for program, share in zip(pair, shares, strict=True))
    )
    kernels: list[Kernel] = []
    clients = []
    for program, share in zip(pair, shares, strict=True):
        repeats = int(span_ns // program.alone_ns) + 2
        client = _client(program.kernels, len(kernels), repeats)
        sm_cap = round(share * config.sm_count) if share < 1 else 0
        clients.append(msgspec.structs.replace(client, sm_cap=sm_cap))
        kernels += program.kernels
    results = Device(config, _LIMITS).run(kernels, clients, until_ns=span_ns)
    return tuple(
        max(1.0, _mean_ns(result.repeat_ends_ns, span_ns) / program.alone_ns)
        for program, result in zip(pair, results, strict=True)
    )


def _client(kernels: Sequence[Kernel], first: int, repeats: int) -> ScriptClient:
    steps = [Step(_LAUNCH_NS, first + index) for index in range(len(kernels))]
    return ScriptClient(steps=(*steps, Step(0, None, sync=True)), repeats=repeats, group_label=1)


def _mean_ns(ends_ns: Sequence[int], until_ns: int) -> float:
    """Return the mean time of a repeat over those that ended in time; the whole span, as a lower bound, if none did."""
    ended = [end_ns for end_ns in ends_ns if 0 < end_ns <= until_ns]
    return ended[-1] / len(ended) if ended else float(until_ns)
