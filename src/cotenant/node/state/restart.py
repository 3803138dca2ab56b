"""The restart rule of `cotenant run`: whether and when a program that ended is started again."""

from __future__ import annotations

from typing import Final

from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.units.instant import SECOND_NS, Duration

CAP_NS: Final = 300 * SECOND_NS
"""Maximum wait between two starts."""


_SIGNALLED: Final = 128
"""A program that a signal ended has this plus the signal's number as its exit code."""


def _is_failure(code: int) -> bool:
    """Return whether a program failed: it neither exited with 0 nor was asked to end by a signal."""
    if code <= _SIGNALLED:
        return code != 0
    from cotenant.node.model.fault import Source  # noqa: PLC0415  few programs end by a signal
    from cotenant.node.policy.protect.errors import classify  # noqa: PLC0415  as above

    return classify(Source.SIGNAL, code - _SIGNALLED).restart


class RestartPolicy:
    """The restart rule with its state: `no`, or `on-failure` or `always` with an optional maximum (":3")."""

    def __init__(self, rule: str, base_ns: Duration, well_ns: Duration) -> None:
        """Set the rule; the first wait is `base_ns` and each further one doubles.

        A program that ran for `well_ns` resets the count of failures.
        """
        self._when, _, limit = rule.partition(":")
        self._max_restarts = int(limit) if limit else None
        self._base_ns = base_ns
        self._well_ns = well_ns
        self._failures = 0
        self.total = 0

    @property
    def is_on(self) -> bool:
        """Whether programs are ever restarted."""
        return self._when != "no"

    def after(self, code: int, ran_ns: Duration) -> Duration | None:
        """Return how long to wait before the restart; None: the program is not restarted."""
        if not self.is_on or (self._when == "on-failure" and not _is_failure(code)):
            return None
        if ran_ns >= self._well_ns:
            self._failures = 0
        if self._max_restarts is not None and self._failures >= self._max_restarts:
            return None
        self._failures += 1
        self.total += 1
        return delay_ns(self._failures, self._base_ns, CAP_NS)
