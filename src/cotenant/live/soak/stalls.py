"""For how long did a processor run nothing of ours? One sleeper on each, and how late it wakes up."""

from __future__ import annotations

import os
import threading
from typing import Final

from cotenant.live.clock import monotonic_ns, pause

_NAP_S: Final = 0.002
LATE_NS: Final = 5_000_000
"""On a processor that is free a sleeper is later than this only if the machine below it stands still."""


class Stalls:
    """Counts from its begin to its end. What others of this machine run makes sleepers late, too."""

    def __init__(self) -> None:
        """Nobody sleeps yet."""
        self._lost_ns = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0)
        self._end = threading.Event()
        self._sleepers = [threading.Thread(target=self._sleep, args=(cpu,), daemon=True) for cpu in self._lost_ns]

    def begin(self) -> None:
        """From now on."""
        for sleeper in self._sleepers:
            sleeper.start()

    def end(self) -> None:
        """No longer."""
        self._end.set()
        for sleeper in self._sleepers:
            sleeper.join()

    def lost_ns(self) -> dict[int, int]:
        """By processor, so far: all the time by which its sleeper was late, each time more than a little."""
        return dict(self._lost_ns)

    def _sleep(self, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread alone
        while not self._end.is_set():
            due_ns = monotonic_ns() + round(_NAP_S * 1e9)
            pause(_NAP_S)
            late_ns = monotonic_ns() - due_ns
            if late_ns > LATE_NS:
                self._lost_ns[cpu] += late_ns
