"""For how long did a processor run nothing of ours? One sleeper on each, and how late it wakes up."""

from __future__ import annotations

import os
import threading
from typing import Final, NamedTuple

from cotenant.domain.instant import Duration, Instant
from cotenant.live.clock import monotonic_ns, pause

_NAP_NS: Final = 2_000_000
_AWAKE: Final = 1 << 62
"""Due after all time: who does not sleep is not late."""
LATE_NS: Final = 5_000_000
"""On a processor that is free a sleeper is later than this only if the machine below it stands still."""


class _Nap(NamedTuple):
    lost_ns: Duration
    due_ns: Instant


class Lost(NamedTuple):
    """What each processor lost until an instant."""

    at_ns: Instant
    lost_ns: dict[int, Duration]

    def since_pct(self, before: Lost) -> float:
        """Of the time since then, what the processor lost that lost most."""
        most_ns = max(lost_ns - before.lost_ns[cpu] for cpu, lost_ns in self.lost_ns.items())
        return 100 * max(most_ns, 0) / max(self.at_ns - before.at_ns, 1)


class Stalls:
    """Counts from its begin to its end. What others of this machine run makes sleepers late, too."""

    def __init__(self) -> None:
        """Nobody sleeps yet."""
        self._naps = dict.fromkeys(sorted(os.sched_getaffinity(0)), _Nap(0, _AWAKE))
        self._end = threading.Event()
        self._sleepers = [threading.Thread(target=self._sleep, args=(cpu,), daemon=True) for cpu in self._naps]

    def begin(self) -> None:
        """From now on."""
        for sleeper in self._sleepers:
            sleeper.start()

    def end(self) -> None:
        """No longer."""
        self._end.set()
        for sleeper in self._sleepers:
            sleeper.join()

    def look(self) -> Lost:
        """By processor, so far: all the time by which its sleeper was or is late, each time more than a little."""
        naps = dict(self._naps)  # first: what is lost from here on is late by then
        now_ns = monotonic_ns()
        return Lost(now_ns, {cpu: nap.lost_ns + _late_ns(nap, now_ns) for cpu, nap in naps.items()})

    def _sleep(self, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread alone
        nap = _Nap(0, monotonic_ns() + _NAP_NS)
        while not self._end.is_set():
            self._naps[cpu] = nap
            pause(_NAP_NS / 1e9)
            now_ns = monotonic_ns()
            nap = _Nap(nap.lost_ns + _late_ns(nap, now_ns), now_ns + _NAP_NS)
        self._naps[cpu] = nap._replace(due_ns=_AWAKE)


def _late_ns(nap: _Nap, now_ns: Instant) -> Duration:
    late_ns = now_ns - nap.due_ns
    return late_ns if late_ns > LATE_NS else 0
