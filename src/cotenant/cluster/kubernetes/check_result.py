"""Results of `cotenant kubernetes check`."""

from __future__ import annotations

import msgspec

from cotenant.node.client.doctor import Level


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Level
    check: str
    """What was examined."""
    what: str
    remedy: str = ""


def good(check: str, what: str) -> CheckResult:
    """Return the result of a check that found no problem."""
    return CheckResult(Level.GOOD, check, what)


def note(check: str, what: str, remedy: str) -> CheckResult:
    """Return the result of a check that found something to know."""
    return CheckResult(Level.NOTE, check, what, remedy)


def bad(check: str, what: str, remedy: str) -> CheckResult:
    """Return the result of a check that found a problem."""
    return CheckResult(Level.BAD, check, what, remedy)
