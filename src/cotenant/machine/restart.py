"""Is a program that ended started again, and when?"""

from __future__ import annotations

from typing import Final

from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.policy.protect.backoff import delay_ns

CAP_NS: Final = 300 * SECOND_NS
"""No wait between two starts is longer."""
WELL_NS: Final = 60 * SECOND_NS
"""A program that ran for this long ran well: what went wrong before does not count any more."""


class Restarts:
    """What is remembered of one program's ends. The rule is `no`, or `on-failure` or `always` with a most (":3")."""

    def __init__(self, rule: str, base_ns: Duration) -> None:
        """Begin; the first wait is the base, each further one twice as long."""
        self._when, _, most = rule.partition(":")
        self._most = int(most) if most else None
        self._base_ns = base_ns
        self._in_a_row = 0
        self.total = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is ever started again."""
        return self._when != "no"

    def after(self, code: int, ran_ns: Duration) -> Duration | None:
        """How long to wait after such an end; None: it stays ended."""
        if not self.is_on or (self._when == "on-failure" and code == 0):
            return None
        if ran_ns >= WELL_NS:
            self._in_a_row = 0
        if self._most is not None and self._in_a_row >= self._most:
            return None
        self._in_a_row += 1
        self.total += 1
        return delay_ns(self._in_a_row, self._base_ns, CAP_NS)
