"""Is a program that ended started again, and when?"""

from __future__ import annotations

from typing import Final

from cotenant.domain.fault import Source
from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.policy.protect.backoff import delay_ns
from cotenant.policy.protect.errors import classify

CAP_NS: Final = 300 * SECOND_NS
"""No wait between two starts is longer."""


_SIGNALLED: Final = 128
"""The exit code of a program that a signal ended is this and the signal's number."""


def _is_failure(code: int) -> bool:
    """Whether it ended otherwise than it was meant to: not by itself, nor by a signal that somebody sent for that."""
    return code != 0 and (code <= _SIGNALLED or classify(Source.SIGNAL, code - _SIGNALLED).restart)


class Restarts:
    """What is remembered of one program's ends. The rule is `no`, or `on-failure` or `always` with a most (":3")."""

    def __init__(self, rule: str, base_ns: Duration, well_ns: Duration) -> None:
        """Begin; the first wait is the base, each further one twice as long.

        A program that ran for `well_ns` ran well: what went wrong before does not count any more.
        """
        self._when, _, most = rule.partition(":")
        self._most = int(most) if most else None
        self._base_ns = base_ns
        self._well_ns = well_ns
        self._in_a_row = 0
        self.total = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is ever started again."""
        return self._when != "no"

    def after(self, code: int, ran_ns: Duration) -> Duration | None:
        """How long to wait after such an end; None: it stays ended."""
        if not self.is_on or (self._when == "on-failure" and not _is_failure(code)):
            return None
        if ran_ns >= self._well_ns:
            self._in_a_row = 0
        if self._most is not None and self._in_a_row >= self._most:
            return None
        self._in_a_row += 1
        self.total += 1
        return delay_ns(self._in_a_row, self._base_ns, CAP_NS)
