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
