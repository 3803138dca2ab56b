"""Results of a simulation of hosts on one device."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.units.value import Value


class ClientTotals(Value, frozen=True, kw_only=True):
    """Totals of one client within the window: between two instants, or from the first host's warm-up to its end.

    Its requests are all that ended after its own warm-up.
    """

    requests: int
    latencies_ns: tuple[int, ...]
    kernels: int
    done_ns: int
    """Completed kernel time, at the duration alone."""
    delayed_ns: int
    """Delay of its kernels by other clients, as the device measured it."""
    waits: int
    """Launches that had to wait."""
    waited_ns: int


class DeviceRun(Value, frozen=True, kw_only=True):
    """Results of one run."""

    begin_ns: int
    end_ns: int
    busy_ns: int
    sm_ns: int
    """SMs with at least one block, times duration."""
    clients: tuple[ClientTotals, ...]
    gaps_ns: tuple[tuple[int, int], ...]
    """Gaps of the first client within the window: from the end of all its work to its next launch."""
    co_running_ns: int
    """Time in which gated kernels ran while the first client had work on the device."""

    @property
    def wall_ns(self) -> int:
        """Return the length of the window."""
        return self.end_ns - self.begin_ns


def co_running_ns(runs: Sequence[tuple[int, int]], gaps: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """Return how much of the runs is within the window and outside of the gaps; both are in order."""
    total = first = 0
    for run in runs:
        start_ns, stop_ns = max(run[0], begin_ns), min(run[1], end_ns)
        if stop_ns <= start_ns:
            continue
        total += stop_ns - start_ns
        while first < len(gaps) and gaps[first][1] <= start_ns:
            first += 1
        index = first
        while index < len(gaps) and gaps[index][0] < stop_ns:
            total -= max(min(stop_ns, gaps[index][1]) - max(start_ns, gaps[index][0]), 0)
            index += 1
    return total
