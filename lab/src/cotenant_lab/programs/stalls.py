"""Measure for how long each processor does not run a waking thread: one sleeping thread per processor."""

from __future__ import annotations

import os
import threading
from typing import Final, NamedTuple

from cotenant.runner.clock import monotonic_ns, pause
from cotenant.units.instant import Duration, Instant

_SLEEP_NS: Final = 2_000_000
_AWAKE: Final = 1 << 62
"""A due instant after all time: a thread that does not sleep is not late."""
LATE_NS: Final = 5_000_000
"""On a free processor a sleeper is later than this only if the hypervisor stops the processor."""


class _Sleep(NamedTuple):
    lost_ns: Duration
    due_ns: Instant


class LostTime(NamedTuple):
    """Time that each processor lost until an instant."""

    at_ns: Instant
    lost_ns: dict[int, Duration]

    def since_pct(self, before: LostTime) -> float:
        """Return the largest percentage of the time since `before` that a processor lost."""
        most_ns = max(lost_ns - before.lost_ns[cpu] for cpu, lost_ns in self.lost_ns.items())
        return 100 * max(most_ns, 0) / max(self.at_ns - before.at_ns, 1)


class Stalls:
    """Counts lost time; other programs of this machine make sleepers late, too."""

    def __init__(self) -> None:
        """Prepare without starting threads."""
        self._sleeps = dict.fromkeys(sorted(os.sched_getaffinity(0)), _Sleep(0, _AWAKE))
        self._end = threading.Event()
        self._sleepers = [threading.Thread(target=self._sleep, args=(cpu,), daemon=True) for cpu in self._sleeps]

    def begin(self) -> None:
        """Start counting."""
        for sleeper in self._sleepers:
            sleeper.start()

    def end(self) -> None:
        """Stop counting."""
        self._end.set()
        for sleeper in self._sleepers:
            sleeper.join()

    def lost_time(self) -> LostTime:
        """Return, by processor, the total lateness of its sleeper so far, without small delays."""
        sleeps = dict(self._sleeps)  # first, because time that is lost from here on is still late then
        now_ns = monotonic_ns()
        return LostTime(now_ns, {cpu: sleep.lost_ns + _late_ns(sleep, now_ns) for cpu, sleep in sleeps.items()})

    def _sleep(self, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # applies to this thread alone
        sleep = _Sleep(0, monotonic_ns() + _SLEEP_NS)
        while not self._end.is_set():
            self._sleeps[cpu] = sleep
            pause(_SLEEP_NS / 1e9)
            now_ns = monotonic_ns()
            sleep = _Sleep(sleep.lost_ns + _late_ns(sleep, now_ns), now_ns + _SLEEP_NS)
        self._sleeps[cpu] = sleep._replace(due_ns=_AWAKE)


def _late_ns(sleep: _Sleep, now_ns: Instant) -> Duration:
    late_ns = now_ns - sleep.due_ns
    return late_ns if late_ns > LATE_NS else 0
