"""In which words is it said why a tenant waits?"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.protect import Stage, Standing
from cotenant.format.log import cause_of
from cotenant.format.quantity import round_duration
from cotenant.policy.schedule.held import Hold


class Cause(msgspec.Struct, frozen=True):
    """One reason, and what is on record about it."""

    kind: str
    text: str
    turn: int
    """The turn behind it; 0: none."""
    unix_ns: int
    entry: str
    """The journal's entry of that turn."""
    details: list[str]


_STAGES: Final = {
    Stage.DRAINING: "it is on its way out: its launches wait until the work that it announced is over",
    Stage.TERMINATING: "it is on its way out: it was asked to end, and may still launch what it takes for that",
    Stage.FINISHING: "it is on its way out: its time to end by itself is over, and it is killed soon",
    Stage.KILLED: "it was killed, and its end is awaited",
    Stage.SUSPENDING: "it is being suspended: its device memory moves to the host",
    Stage.SUSPENDED: "it is suspended: its device memory is on the host until there is room again",
    Stage.RESTORING: "it is coming back: its memory moves from the host to the device",
}

_HOLDS: Final = {
    Hold.BUSY: "it waits at the gate: work of {above} still runs",
    Hold.TIGHT: "it waits at the gate: its kernel does not fit into the gap that {above} leaves",
    Hold.DUE: "it waits at the gate: {above} may launch at any instant",
    Hold.BOUND: "it waits at the gate: as much of its work is submitted as may be",
    Hold.OTHER: "it waits at the gate: somebody of higher priority, or with a kernel that fits better, goes first",
    Hold.PAUSED: "it waits at the gate: the node says so",
    Hold.CHANGED: "it waits at the gate: {above} launched at this instant",
    Hold.DEBT: "it waits at the gate: {above} has lost as much time to those below as it may for now",
    Hold.LIMIT: "it waits at the gate: it has had its share of the device for now",
    Hold.SHARE: "it waits at the gate: an equal of its priority has not had its share of the device yet",
}


def stage_words(standing: Standing, now: Instant) -> str:
    """Where a tenant stands, why, and how long that may take."""
    because = f" ({cause_of(standing.why)})" if standing.why else ""
    left = (
        f", for at most {round_duration(standing.until_ns - now)} more" if standing.until_ns > max(now, NEVER) else ""
    )
    return f"{_STAGES[standing.stage]}{left}{because}"


def hold_words(hold: Hold, above: str) -> str:
    """What holds a launch back."""
    return _HOLDS[hold].format(above=above or "one above")
