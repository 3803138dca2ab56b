"""What does a tenant ask of a device: which launches make one request, and when does the next one come?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal, TypeAlias

from cotenant.domain.kernel import KernelIdentity, Work
from cotenant.domain.timeline import Activity, Timeline
from cotenant.domain.value import Value

ArrivalKind: TypeAlias = Literal["back_to_back", "periodic", "poisson", "instants", "training"]


class Launch(Value, frozen=True):
    """One launch, and the host's time from it to its next one."""

    kernel: KernelIdentity
    device_ns: int
    """Alone on the device. Of a copy it is what was measured; its bytes say how long it takes here."""
    interval_ns: int = 0
    stream: int = 0
    registers: int = 0
    moved_bytes: int = 0
    memory_bound: bool | None = None

    @property
    def blocks_per_sm(self) -> int:
        """How many of its blocks one SM holds; 0: it is no kernel."""
        return self.kernel.resident_blocks(self.registers)

    def sms(self, sm_count: int) -> int:
        """How many SMs of a device with so many it takes at most."""
        return min(sm_count, -(-self.kernel.blocks // self.blocks_per_sm)) if self.blocks_per_sm else 0


class Arrival(Value, frozen=True):
    """When requests come: at once after the last, at instants of a clock, random or listed ones, or without end."""

    kind: ArrivalKind
    period_ns: int = 0
    """Of periodic arrivals."""
    rate_per_s: float = 0.0
    """Of Poisson arrivals."""
    seed: int = 0
    instants_ns: tuple[int, ...] = ()
    """Of listed ones: from the beginning on, in order, at least as many as there are requests."""


BACK_TO_BACK = Arrival("back_to_back")
TRAINING = Arrival("training")


def periodic(period_ns: int) -> Arrival:
    """A request every so often."""
    return Arrival("periodic", period_ns=period_ns)


def poisson(rate_per_s: float, seed: int) -> Arrival:
    """Requests at random instants, so many a second in the mean."""
    return Arrival("poisson", rate_per_s=rate_per_s, seed=seed)


def listed(instants_ns: Iterable[int]) -> Arrival:
    """Requests at these instants, from the beginning on."""
    return Arrival("instants", instants_ns=tuple(sorted(instants_ns)))


class Load(Value, frozen=True):
    """One program's work: the launches of a request (or of a training step), its arrivals, and how many there are.

    The host waits for everything it launched at the end of a request. `graph`: the whole request is one launch of a
    CUDA graph, in which every launch follows the one before.
    """

    name: str
    launches: tuple[Launch, ...]
    arrival: Arrival = BACK_TO_BACK
    requests: int = 1
    """How many; a training load goes on until it is stopped."""
    graph: bool = False

    @property
    def device_ns(self) -> int:
        """Device time of one request, one launch after the other."""
        return sum(launch.device_ns for launch in self.launches)

    @property
    def kernels_ns(self) -> int:
        """The part of it that is kernels."""
        return sum(launch.device_ns for launch in self.launches if launch.kernel.work is Work.KERNEL)

    @property
    def host_ns(self) -> int:
        """Host time of one request: the intervals between its launches."""
        return 0 if self.graph else sum(launch.interval_ns for launch in self.launches)


def launches_of(timeline: Timeline) -> tuple[Launch, ...]:
    """The launches of a timeline in the order of the host, with the time from each to the next; 0 after the last.

    What has no instant was launched with what ran before it, as in a graph; without any they are back to back.
    """
    latest_ns = min((one.launch_ns for one in timeline.activities if one.launch_ns is not None), default=0)
    scheduled: list[tuple[int, Activity]] = []
    for activity in timeline.activities:
        if activity.launch_ns is not None:
            latest_ns = activity.launch_ns
        scheduled.append((latest_ns, activity))
    if not scheduled:
        return ()
    scheduled.sort(key=lambda one: one[0])
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
    )
