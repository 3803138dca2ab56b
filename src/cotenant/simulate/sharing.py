"""Run several tenants on a simulated device, and measure the result of each."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.gate.rules import Limit
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.sim.host import Client, LaunchGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.workload.load import Workload

WHOLE: Final = 100
_PENDING_LEAST: Final = 3
_PENDING_PART: Final = 0.05
"""A queue counts as growing if more than this part of the requests in the window have not ended at its end."""
SAMPLE_NS: Final = 100 * MILLISECOND_NS


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant of the device."""

    load: Workload
    online: bool
    priority: int
    slo_ns: int = 0
    share_ppm: int = 0
    """Minimum share of an offline tenant; with a limit, also its maximum."""
    limit: Limit = Limit.OFF
    percent: int = 100
    """Percentage of the SMs that it may use under MPS (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)."""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants, duration, and start of the measured window. Arrival instants of online loads are fixed."""

    guests: tuple[Guest, ...]
    setting: RunSettings
    for_ns: int
    warm_ns: int = 0
    sample_ns: int = SAMPLE_NS


class TenantResult(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's run. All instants are relative to its start; the window is the measured part."""

    begin_ns: int
    end_ns: int
    dues_ns: array[int]
    """Due instants of every request before the end, in order, whether it was started or not; empty for a training."""
    ends_ns: array[int]
    """End instants in the same order; shorter by the requests that had not ended."""
    starts_ns: array[int] = msgspec.field(default_factory=lambda: array("q"))
    """When they began, in the same order and number as their ends: a request waits for those before it."""
    done_ns: int
    """Kernel time completed in the window, by the duration of these kernels alone."""
    progress_ns: array[int]
    """The same since the start of the run, at every sample."""
    delayed_ns: int
    waited_ns: int

    @property
    def window_s(self) -> float:
        """Return the duration of the window."""
        return (self.end_ns - self.begin_ns) / SECOND_NS

    def latencies_ns(self, begin_ns: int | None = None, end_ns: int | None = None) -> list[int]:
        """Return latencies of requests that were due in the window, or between two instants, and ended in the run."""
        first, last = self._span(begin_ns, end_ns)
        return [end - due for due, end in zip(self.dues_ns[first:last], self.ends_ns[first:last], strict=False)]

    def services_ns(self) -> list[int]:
        """Return how long requests in the window took from their begin on, without the wait for those before."""
        first, last = self._span(None, None)
        return [end - start for start, end in zip(self.starts_ns[first:last], self.ends_ns[first:last], strict=False)]

    def is_bounded(self) -> bool:
        """Return whether the queue did not grow over the window: nearly all requests ended that were due."""
        first, last = self._span(None, None)
        due, pending = last - first, last - len(self.ends_ns)
        return pending <= max(_PENDING_LEAST, _PENDING_PART * due)

    def count_within(self, slo_ns: int, begin_ns: int | None = None, end_ns: int | None = None) -> tuple[int, int]:
        """Return the number of requests within the objective, and of those whose result is known."""
        first, last = self._span(begin_ns, end_ns)
        latencies = self.latencies_ns(begin_ns, end_ns)
        overdue = sum(self.end_ns - due > slo_ns for due in self.dues_ns[first + len(latencies) : last])
        return sum(latency <= slo_ns for latency in latencies), len(latencies) + overdue

    def attainment(self, slo_ns: int, begin_ns: int | None = None, end_ns: int | None = None) -> float:
        """Return the fraction of requests answered within the objective; 1 without requests."""
        within, resolved = self.count_within(slo_ns, begin_ns, end_ns)
        return within / resolved if resolved else 1.0

    def within_per_s(self, slo_ns: int) -> float:
        """Return requests answered within the objective per second of the window: their goodput."""
        return self.count_within(slo_ns)[0] / self.window_s

    def quantile_ns(self, fraction: float) -> int:
        """Return a quantile of latencies in the window; unfinished requests count with their wait. 0: no requests."""
        first, last = self._span(None, None)
        latencies = self.latencies_ns()
        pending = (self.end_ns - due for due in self.dues_ns[first + len(latencies) : last])
        ordered = sorted([*latencies, *pending])
        return ordered[min(max(math.ceil(fraction * len(ordered)), 1), len(ordered)) - 1] if ordered else 0

    def _span(self, begin_ns: int | None, end_ns: int | None) -> tuple[int, int]:
        begin_ns = self.begin_ns if begin_ns is None else begin_ns
        end_ns = self.end_ns if end_ns is None else end_ns
        return bisect.bisect_left(self.dues_ns, begin_ns), bisect.bisect_left(self.dues_ns, end_ns)


class ShareChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the share by the controller, and its cause."""

    at_ns: int
    online_ppm: int
    cause: str
    detail: str = ""
    shares: tuple[tuple[int, int], ...] = ()


class SharingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run in one sharing mode."""

    mode: str
    gpus: int
    """Number of devices used."""
    begin_ns: int
    end_ns: int
    busy_ns: int
    """Time in the window with at least one block on a device, summed over devices."""
    sm_ns: int
    guests: tuple[TenantResult, ...]
    turns: tuple[ShareChange, ...] = ()
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Values that are specific to a mode."""


def clients_of(run: RunSpec, *, sliced: bool) -> list[Client]:
    """Return the tenants as processes of a device: one group under MPS, one each under time slices."""
    return [
        Client(
            guest.load,
            index if sliced else 0,
            run.setting.seed * 1_000_003 + index,
            sm_cap=0
            if sliced or guest.percent >= WHOLE
            else max(guest.percent * run.setting.device.sm_count // WHOLE, 1),
        )
        for index, guest in enumerate(run.guests)
    ]


def simulation_of(run: RunSpec, clients: Sequence[Client], gates: Sequence[LaunchGate]) -> DeviceSimulation:
    """Return their device before the run."""
    return DeviceSimulation(run.setting.device, clients, gates, run.setting.costs, run.setting.seed)


def simulate_run(
    mode: str, run: RunSpec, simulation: DeviceSimulation, turns: Sequence[ShareChange] = ()
) -> SharingOutcome:
    """Run the device and return the result of each tenant. `turns` may be appended to during the run."""
    progress = [array("q") for _ in run.guests]

    def sample(now_ns: int) -> None:
        del now_ns
        for series, done_ns in zip(progress, simulation.done_ns(), strict=True):
            series.append(done_ns)

    simulation.every(run.sample_ns, sample)
    played = simulation.play_for(run.for_ns, run.warm_ns)
    result = []
    for index, (guest, tally) in enumerate(zip(run.guests, played.clients, strict=True)):
        begun_ns, ends_ns = simulation.requests_of(index)
        result.append(
            TenantResult(
                begin_ns=run.warm_ns,
                end_ns=run.for_ns,
                dues_ns=_dues_ns(guest.load, begun_ns, run.for_ns),
                ends_ns=ends_ns,
                starts_ns=simulation.starts_of(index),
                done_ns=tally.done_ns,
                progress_ns=progress[index],
                delayed_ns=tally.delayed_ns,
                waited_ns=tally.waited_ns,
            )
        )
    return SharingOutcome(
        mode=mode,
        gpus=1,
        begin_ns=run.warm_ns,
        end_ns=run.for_ns,
        busy_ns=played.busy_ns,
        sm_ns=played.sm_ns,
        guests=tuple(result),
        turns=tuple(turns),
    )


def _dues_ns(load: Workload, begun_ns: array[int], until_ns: int) -> array[int]:
    """Return due instants; listed instants include requests that were not started."""
    if load.arrival.kind != "instants":
        return begun_ns
    listed_ns = load.arrival.instants_ns[: load.requests]
    return array("q", listed_ns[: bisect.bisect_left(listed_ns, until_ns)])
