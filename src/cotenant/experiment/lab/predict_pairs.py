"""What do programs do to each other on the device model? Pairs of real kernel lists, their use measured alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant.domain.timeline import Timeline, profile_of
from cotenant.experiment.lab.predict_together import Group
from cotenant.policy.predict.kernels import widths
from cotenant.policy.predict.slowdown import Use
from cotenant.sim.device import Device, DeviceConfig, Kernel, Limits, ScriptClient, Step, preset
from cotenant.sim.physics.stream import kernel_of

_LAUNCH_NS: Final = 5_000
_TURNS_OF_LONGEST: Final = 6
_LIMITS: Final = Limits(clients=4, contexts=4, streams=4, events=1, ops=65536, records=64)


class _Program(msgspec.Struct, frozen=True):
    name: str
    kernels: list[Kernel]
    alone_ns: float
    use: Use


def pairs_on_the_model(streams: Mapping[str, Timeline]) -> list[Group]:
    """Every two programs in one MPS group, one request or step after the other."""
    config = preset("v100")
    programs = [_program(name, stream, config) for name, stream in sorted(streams.items())]
    found = []
    for pair in itertools.combinations_with_replacement(programs, 2):
        slower = _together(pair, config)
        names = tuple(one.name for one in pair)
        families = tuple(name.split("_")[0] for name in names)
        found.append(Group(" + ".join(names), "mps", tuple(one.use for one in pair), names, families, slower))
    return found


def _program(name: str, stream: Timeline, config: DeviceConfig) -> _Program:
    """With what a node would know of it: a profile of its kernels, and the device's own books of a run alone."""
    kernels = [kernel_of(activity, config) for activity in stream.activities]
    device = Device(config, _LIMITS)
    (result,) = device.run(kernels, [_client(kernels, 0, 3)])
    alone_ns = _mean_ns(result.repeat_ends_ns, 10**18)
    books = device.count()
    profile = profile_of(stream)
    use = Use(
        duty=min(1.0, books.busy_ns / result.repeat_ends_ns[-1]),
        widths=widths(profile, config.sm_count),
        memory=min(1.0, books.traffic_bytes / (books.busy_ns * config.memory_bytes_per_s / 1e9)),
        kernel_ns=profile.device_ns / len(kernels),
    )
    return _Program(name, kernels, alone_ns, use)


def _together(pair: Sequence[_Program], config: DeviceConfig) -> tuple[float, ...]:
    span_ns = round(_TURNS_OF_LONGEST * max(one.alone_ns for one in pair))
    kernels: list[Kernel] = []
    clients = []
    for one in pair:
        repeats = int(span_ns // one.alone_ns) + 2
        clients.append(_client(one.kernels, len(kernels), repeats))
        kernels += one.kernels
    results = Device(config, _LIMITS).run(kernels, clients, until_ns=span_ns)
    return tuple(
        max(1.0, _mean_ns(result.repeat_ends_ns, span_ns) / one.alone_ns)
        for one, result in zip(pair, results, strict=True)
    )


def _client(kernels: Sequence[Kernel], first: int, repeats: int) -> ScriptClient:
    steps = [Step(_LAUNCH_NS, first + index) for index in range(len(kernels))]
    return ScriptClient(steps=(*steps, Step(0, None, sync=True)), repeats=repeats, group_label=1)


def _mean_ns(ends_ns: Sequence[int], until_ns: int) -> float:
    """Mean time of a repeat, over those that ended in time; the whole span, as a lower bound, if none did."""
    ended = [end_ns for end_ns in ends_ns if 0 < end_ns <= until_ns]
    return ended[-1] / len(ended) if ended else float(until_ns)
