"""The sentences of `cotenant explain`."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.gate.hold_reason import HoldReason
from cotenant.node.decision_log import cause_of
from cotenant.node.model.protection import ExitPhase, Lifecycle
from cotenant.units.instant import NEVER, Instant
from cotenant.units.text import round_duration


class ExplanationCause(msgspec.Struct, frozen=True):
    """One reason, and its journal entry."""

    kind: str
    text: str
    turn: int
    """The turn that caused it; 0: none."""
    unix_ns: int
    entry: str
    """The journal entry of that turn."""
    details: list[str]


_PHASES: Final = {
    ExitPhase.DRAINING: "it is ending: its launches wait until the work that it announced has ended",
    ExitPhase.TERMINATING: "it is ending: it was asked to end, and may launch only what its shutdown needs",
    ExitPhase.FINISHING: "it is ending: its grace period is over, and it will be killed",
    ExitPhase.KILLED: "it was killed, and the node waits for its end",
    ExitPhase.SUSPENDING: "it is being suspended: its device memory moves to the host",
    ExitPhase.SUSPENDED: "it is suspended: its device memory is on the host until there is free memory again",
    ExitPhase.RESTORING: "it is being restored: its memory moves from the host to the device",
}

_HOLDS: Final = {
    HoldReason.BUSY: "it waits at the gate: work of {higher} still runs",
    HoldReason.TIGHT: "it waits at the gate: its kernel does not fit into the gap that {higher} leaves",
    HoldReason.DUE: "it waits at the gate: {higher} may launch at any instant",
    HoldReason.BOUND: "it waits at the gate: the limit of submitted work is reached",
    HoldReason.OTHER: "it waits at the gate: another waiting tenant has a higher priority or a kernel that fits better",
    HoldReason.PAUSED: "it waits at the gate: it is paused",
    HoldReason.CHANGED: "it waits at the gate: {higher} has just launched",
    HoldReason.DEBT: "it waits at the gate: {higher} has already lost the allowed time to lower priorities",
    HoldReason.LIMIT: "it waits at the gate: it has used its share of the device for now",
    HoldReason.SHARE: "it waits at the gate: a tenant of equal priority has not had its share of the device yet",
    HoldReason.CLEAN: "it waits at the gate: {higher} measures how long its work takes alone",
    HoldReason.RANKS: "it waits at the gate: other ranks of its job have not come to this collective, or wait too",
}

_WHOLE: Final = {
    0: "its modules contain machine code only, or were not loaded as PTX",
    1: "all blocks of the kernel run at once",
    2: "it was launched with attributes, or while a stream was captured",
    3: "the driver refused the rewritten kernel",
    4: "the rewritten kernel is more than 5 % slower",
    8: "the PTX of its module is not understood",
    9: "the kernel is too large",
    10: "its module is compiled for a debugger",
    11: "the kernel has an unknown instruction",
    12: "the kernel has an unknown register",
    13: "the kernel reads its block number in an unknown way",
    14: "the kernel depends on the SM or the launch that it belongs to",
    15: "the kernel uses clusters of blocks",
    16: "the kernel orders itself with other launches",
    17: "the kernel may wait for other blocks",
    18: "the kernel calls functions through pointers",
    19: "the kernel calls a function that its module does not contain",
    20: "the kernel launches kernels",
    21: "the kernel calls functions recursively",
    22: "the kernel has too many parameters",
}
"""enum ct_gate_whole in native/gate/pages.h; from 8 on enum ct_ptx_reason in native/hook/slice/ptx.h plus 7."""


def describe_phase(lifecycle: Lifecycle, now: Instant) -> str:
    """Return the sentence about the lifecycle of a tenant, its cause and its duration."""
    because = f" ({cause_of(lifecycle.why)})" if lifecycle.why else ""
    remaining = (
        f", for at most {round_duration(lifecycle.until_ns - now)} more" if lifecycle.until_ns > max(now, NEVER) else ""
    )
    return f"{_PHASES[lifecycle.phase]}{remaining}{because}"


def describe_hold(hold: HoldReason, higher: str) -> str:
    """Return the sentence that says why a launch waits; `higher` names the tenants of higher priority."""
    return _HOLDS[hold].format(higher=higher or "a tenant of higher priority")


def describe_whole(reason: int) -> str:
    """Return why long launches were not cut into parts."""
    return _WHOLE.get(reason, "for a reason that this version does not know")
