"""Workload of a tenant: the launches of one request, and the arrivals of requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.timeline import Activity, Timeline

_BANDWIDTH_PARTS: Final = {True: 0.8, False: 0.2, None: 0.3}
"""Of a memory-bound kernel, of another, and of one whose class is unknown: our choices, near the bandwidth that Orion
reports for batch normalizations and convolutions on a V100, and near the mean of iGniter's models."""

ArrivalKind: TypeAlias = Literal["back_to_back", "periodic", "poisson", "instants", "training"]


class Launch(Value, frozen=True):
    """One launch, and the host's time from it to the next one."""

    kernel: KernelIdentity
    device_ns: int
    """Time alone on the device. For a copy, this is the measured time; the replay uses its bytes."""
    interval_ns: int = 0
    stream: int = 0
    registers: int = 0
    moved_bytes: int = 0
    memory_bound: bool | None = None
    has_ptx: bool | None = None
    """Whether its program contains PTX of it; None: unless it is a library's matrix product or convolution."""

    @property
    def is_sliceable(self) -> bool:
        """Return whether the hook can launch it in parts, because it has PTX to rewrite."""
        if self.kernel.work is not WorkKind.KERNEL:
            return False
        return not self.kernel.is_of_library if self.has_ptx is None else self.has_ptx

    @property
    def blocks_per_sm(self) -> int:
        """Return how many of its blocks fit on one SM; 0 if it is not a kernel."""
        return self.kernel.resident_blocks(self.registers)

    @property
    def bandwidth_part(self) -> float:
        """Return the part of the device's memory bandwidth that it uses alone, with a block on every SM."""
        return _BANDWIDTH_PARTS[self.memory_bound] if self.kernel.work is WorkKind.KERNEL else 0.0

    def sms(self, sm_count: int) -> int:
        """Return how many SMs it occupies at most on a device of this size."""
        return min(sm_count, -(-self.kernel.blocks // self.blocks_per_sm)) if self.blocks_per_sm else 0


class Arrival(Value, frozen=True):
    """Arrival process: back to back, periodic, Poisson, at given instants, or endless training."""

    kind: ArrivalKind
    period_ns: int = 0
    """Period of periodic arrivals."""
    rate_per_s: float = 0.0
    """Mean rate of Poisson arrivals."""
    seed: int = 0
    instants_ns: tuple[int, ...] = ()
    """Given instants from the start on, in order, at least as many as requests."""


BACK_TO_BACK = Arrival("back_to_back")
TRAINING = Arrival("training")


def periodic(period_ns: int) -> Arrival:
    """Return periodic arrivals."""
    return Arrival("periodic", period_ns=period_ns)


def poisson(rate_per_s: float, seed: int) -> Arrival:
    """Return Poisson arrivals."""
    return Arrival("poisson", rate_per_s=rate_per_s, seed=seed)


def at_instants(instants_ns: Iterable[int]) -> Arrival:
    """Return arrivals at these instants from the start on."""
    return Arrival("instants", instants_ns=tuple(sorted(instants_ns)))


class Workload(Value, frozen=True):
    """One program's work: the launches of a request (or of a training step), its arrivals, and the number of requests.

    The host synchronises at the end of a request. `graph`: the whole request is one launch of a CUDA graph, whose nodes
    form a chain.
    """

    name: str
    launches: tuple[Launch, ...]
    arrival: Arrival = BACK_TO_BACK
    requests: int = 1
    """Number of requests; training goes on until it is stopped."""
    graph: bool = False

    @property
    def device_ns(self) -> int:
        """Return the device time of one request, with its launches in sequence."""
        return sum(launch.device_ns for launch in self.launches)

    @property
    def kernels_ns(self) -> int:
        """Return the device time of the kernels of one request."""
        return sum(launch.device_ns for launch in self.launches if launch.kernel.work is WorkKind.KERNEL)

    @property
    def host_ns(self) -> int:
        """Return the host time of one request: the sum of the intervals between its launches."""
        return 0 if self.graph else sum(launch.interval_ns for launch in self.launches)


def launches_of(timeline: Timeline) -> tuple[Launch, ...]:
    """Return the launches of a timeline in host order, with the interval to the next; 0 after the last.

    An activity without a launch time was launched together with the one before, as in a graph; without any, launches
    are back to back.
    """
    latest_ns = min(
        (activity.launch_ns for activity in timeline.activities if activity.launch_ns is not None), default=0
    )
    scheduled: list[tuple[int, Activity]] = []
    for activity in timeline.activities:
        if activity.launch_ns is not None:
            latest_ns = activity.launch_ns
        scheduled.append((latest_ns, activity))
    if not scheduled:
        return ()
    scheduled.sort(key=lambda entry: entry[0])
    following = itertools.pairwise((*scheduled, scheduled[-1]))
    return tuple(_launch(activity, next_ns - at_ns) for (at_ns, activity), (next_ns, _) in following)


def _launch(activity: Activity, interval_ns: int) -> Launch:
    return Launch(
        activity.kernel,
        activity.device_ns,
        interval_ns,
        activity.stream,
        activity.registers,
        activity.moved_bytes,
        activity.memory_bound,
        activity.has_ptx,
    )
