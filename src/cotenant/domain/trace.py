"""What was asked of a device and when, and what ran on it when?"""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.kernel import Work
from cotenant.domain.value import Value

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
}
"""Why a launch waits; enum ct_gate_reason of native/gate/gate.h."""


PASS_REASONS: Final = {0: "top", 1: "free", 2: "gap", 3: "least", 4: "risk", 5: "stuck", 6: "beside", 7: "lent"}
"""Why a launch passed the gate; the same enum."""


class Ask(enum.IntEnum):
    """What a program did; enum ct_trace_kind of native/hook/trace.h."""

    LAUNCH = 1
    WAIT = 2
    SYNC = 3


class Asked(Value, frozen=True):
    """One entry of a program's ring."""

    kind: Ask
    at_ns: int
    length_ns: int
    """Of a launch the device time expected, 0: unknown; else how long it took."""
    kernel: int
    stream: int
    reason: int = 0

    @property
    def end_ns(self) -> int:
        """When what took time was over."""
        return self.at_ns if self.kind is Ask.LAUNCH else self.at_ns + self.length_ns


class TracedKernel(Value, frozen=True):
    """What a launch's number means."""

    name: str
    work: Work
    mean_ns: int
    """On the device, as far as it is known; 0: it is not."""


class Program(Value, frozen=True):
    """One process and what it asked for, in the order of time."""

    pid: int
    name: str
    kernels: tuple[TracedKernel, ...]
    asked: list[Asked]
    lost: int = 0
    """Entries that were overwritten before they were read."""


class Op(enum.IntEnum):
    """What a device did; enum ct_op_kind of native/device/device.h."""

    KERNEL = 0
    COPY_HTOD = 1
    COPY_DTOH = 2
    COPY_DTOD = 3
    MEMSET = 4
    HOST = 5

    @property
    def work(self) -> Work | None:
        """What a program calls it; None: nothing that a hook tells of."""
        if self is Op.KERNEL:
            return Work.KERNEL
        if self is Op.MEMSET:
            return Work.MEMSET
        return None if self is Op.HOST else Work.COPY

    @property
    def on_sms(self) -> bool:
        """Whether it keeps the SMs busy."""
        return self in (Op.KERNEL, Op.COPY_DTOD, Op.MEMSET)


class Ran(Value, frozen=True):
    """One op that is over, by the device's own word."""

    kind: Op
    pid: int
    client: int
    stream: int
    submit_ns: int
    ready_ns: int
    start_ns: int
    end_ns: int
    delayed_ns: int


class Turn(Value, frozen=True):
    """A client whose running blocks were switched out, or in again."""

    client: int
    at_ns: int
    is_on: bool


class Device(Value, frozen=True):
    """One device that told exactly what it did, in the order of the ends."""

    number: int
    name: str
    ran: list[Ran]
    turns: list[Turn]
    lost: int = 0


class End(enum.IntEnum):
    """How a request to a server of models ended."""

    ANSWERED = 1
    REFUSED = 2
    FAILED = 3
    CANCELLED = 4


class ServedRequest(Value, frozen=True):
    """One request to a server of models. An instant that never came is 0."""

    end: End
    model: str
    rows: int
    number: int
    """Of the request; 0: it was answered at once, and has none."""
    run: int
    """In which it was run; 0: in none, or by the front end itself."""
    units: int
    core: int
    """The first that its run had; -1: no certain one."""
    arrived_ns: int
    chosen_ns: int
    """When its run was decided on."""
    began_ns: int
    """When its run really began."""
    ended_ns: int
    answered_ns: int


class Served(Value, frozen=True):
    """One server of models and what it was asked, in the order of answers."""

    pid: int
    requests: list[ServedRequest]
    lost: int = 0


class Recording(Value, frozen=True):
    """What is known of some span of time on one machine. Instants are CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    unix_ns: int
    """What the clock on the wall said at the end."""
    programs: tuple[Program, ...] = ()
    devices: tuple[Device, ...] = ()
    servers: tuple[Served, ...] = ()
