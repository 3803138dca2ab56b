"""What became of the hosts before one device, and how much ran beside what?"""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.domain.value import Value


class Tally(Value, frozen=True, kw_only=True):
    """What became of one client within the window: between two instants, or from the first one's warm-up to its end.

    Its requests are all that ended after its own warm-up.
    """

    requests: int
    latencies_ns: tuple[int, ...]
    kernels: int
    done_ns: int
    """Kernel time completed: what these kernels take alone."""
    delayed_ns: int
    """What its kernels waited because of others, by the device's books."""
    waits: int
    """Launches that did not pass at once."""
    waited_ns: int


class Played(Value, frozen=True, kw_only=True):
    """A run."""

    begin_ns: int
    end_ns: int
    busy_ns: int
    sm_ns: int
    """SMs with at least one block, times how long."""
    clients: tuple[Tally, ...]
    gaps_ns: tuple[tuple[int, int], ...]
    """Of the first client: from the end of all its work to its next launch, within the window."""
    beside_ns: int
    """Time for which kernels that had to ask ran while the first client had work on the device."""

    @property
    def wall_ns(self) -> int:
        """How long the window was."""
        return self.end_ns - self.begin_ns


def beside_ns(runs: Sequence[tuple[int, int]], gaps: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """How much of the runs, in order, lies within the window and outside of the gaps, in order."""
    total = first = 0
    for run in runs:
        start_ns, stop_ns = max(run[0], begin_ns), min(run[1], end_ns)
        if stop_ns <= start_ns:
            continue
        total += stop_ns - start_ns
        while first < len(gaps) and gaps[first][1] <= start_ns:
            first += 1
        place = first
        while place < len(gaps) and gaps[place][0] < stop_ns:
            total -= max(min(stop_ns, gaps[place][1]) - max(start_ns, gaps[place][0]), 0)
            place += 1
    return total
