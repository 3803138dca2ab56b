"""Recordings of what programs launched, what devices ran, and what servers answered."""

from __future__ import annotations

import enum
from typing import Final

from cotenant.units.value import Value
from cotenant.workload.kernel import WorkKind

GATE_REASONS: Final = {
    8: "busy",
    9: "tight",
    10: "due",
    11: "bound",
    12: "other",
    13: "paused",
    14: "changed",
    15: "debt",
    16: "limit",
    17: "share",
    18: "clean",
    21: "ranks",
}
"""Why a launch waits; enum ct_gate_reason of native/gate/gate.h."""


PASS_REASONS: Final = {
    0: "top",
    1: "free",
    2: "gap",
    3: "min-share",
    4: "risk",
    5: "stuck",
    6: "co-running",
    7: "lent",
    19: "space",
    20: "agreed",
}
"""Why a launch passed the gate; the same enum."""


class ProgramEventKind(enum.IntEnum):
    """The kind of a program event; enum ct_trace_kind of native/hook/timing/trace.h."""

    LAUNCH = 1
    WAIT = 2
    SYNC = 3


class ProgramEvent(Value, frozen=True):
    """One entry of a program's trace ring."""

    kind: ProgramEventKind
    at_ns: int
    length_ns: int
    """For a launch the expected device time, 0: unknown; for a wait its duration."""
    kernel: int
    stream: int
    reason: int = 0

    @property
    def end_ns(self) -> int:
        """Return the end of a wait, or the instant of a launch."""
        return self.at_ns if self.kind is ProgramEventKind.LAUNCH else self.at_ns + self.length_ns


class TracedKernel(Value, frozen=True):
    """The kernel to which launches refer by index."""

    name: str
    work: WorkKind
    mean_ns: int
    """The mean device time; 0: unknown."""


class Program(Value, frozen=True):
    """One process and its events in order of time."""

    pid: int
    name: str
    kernels: tuple[TracedKernel, ...]
    events: list[ProgramEvent]
    lost: int = 0
    """The number of entries that were overwritten before they were read."""


class DeviceOpKind(enum.IntEnum):
    """The kind of a device operation; enum ct_op_kind of native/device/device.h."""

    KERNEL = 0
    COPY_HTOD = 1
    COPY_DTOH = 2
    COPY_DTOD = 3
    MEMSET = 4
    HOST = 5

    @property
    def work(self) -> WorkKind | None:
        """Return the kind of work in a program's terms; None for work that the hook does not record."""
        if self is DeviceOpKind.KERNEL:
            return WorkKind.KERNEL
        if self is DeviceOpKind.MEMSET:
            return WorkKind.MEMSET
        return None if self is DeviceOpKind.HOST else WorkKind.COPY

    @property
    def on_sms(self) -> bool:
        """Return whether the operation occupies SMs."""
        return self in (DeviceOpKind.KERNEL, DeviceOpKind.COPY_DTOD, DeviceOpKind.MEMSET)


class DeviceOp(Value, frozen=True):
    """One finished operation, as the device recorded it."""

    kind: DeviceOpKind
    pid: int
    client: int
    stream: int
    submit_ns: int
    ready_ns: int
    start_ns: int
    end_ns: int
    delayed_ns: int


class ContextSwitch(Value, frozen=True):
    """A switch of a client's running blocks off the device, or on again."""

    client: int
    at_ns: int
    is_on: bool


class Device(Value, frozen=True):
    """One device that recorded its operations exactly, in the order of their ends."""

    number: int
    name: str
    ops: list[DeviceOp]
    switches: list[ContextSwitch]
    lost: int = 0


class RequestEnd(enum.IntEnum):
    """How a request to a model server ended."""

    ANSWERED = 1
    REFUSED = 2
    FAILED = 3
    CANCELLED = 4


class ServedRequest(Value, frozen=True):
    """One request to a model server. An instant that did not occur is 0."""

    end: RequestEnd
    model: str
    rows: int
    number: int
    """The number of the request; 0: it was answered at once and has none."""
    run: int
    """The batch run that contained it; 0: none, or the front end ran it."""
    units: int
    core: int
    """The first core of its run; -1: no fixed core."""
    arrived_ns: int
    chosen_ns: int
    """When the scheduler chose its run."""
    began_ns: int
    """When its run began."""
    ended_ns: int
    answered_ns: int


class ServerRecording(Value, frozen=True):
    """One model server and its requests, in the order of responses."""

    pid: int
    requests: list[ServedRequest]
    lost: int = 0


class Recording(Value, frozen=True):
    """A recording of a time span on one machine. Instants are CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    unix_ns: int
    """The wall-clock time at the end."""
    programs: tuple[Program, ...] = ()
    devices: tuple[Device, ...] = ()
    servers: tuple[ServerRecording, ...] = ()
