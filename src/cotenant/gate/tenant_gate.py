"""One process of a tenant at the gate: drives the gate's C code as the hook does inside a process.

It keeps a forecast of the host's next launch for each history of three launches (a blocking call counts as one), and
asks the gate for each launch until it passes. Instants are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant import _native
from cotenant.gate.tenant_table import WritableBuffer
from cotenant.profile.profile import VARIES
from cotenant.units.instant import MICROSECOND_NS
from cotenant.units.value import Value

SHORT_NS: Final = 100 * MICROSECOND_NS
"""What may be submitted at once into a gap (CT_GATE_DEPTH_NS in native/gate/gate.h): shorter kernels are no risk."""


class LaunchEstimate(Value, frozen=True):
    """The expected duration of a launch and the conditions under which it may run in a gap."""

    expect_ns: int
    sure_ns: int
    """A duration that it rarely exceeds."""
    may_fill: bool = True
    """Whether its duration is predictable enough for a gap."""
    granularity_ns: int = 0
    """The preemption granularity: a launch of higher priority waits no longer, as blocks end one by one.

    0: it waits until the whole launch has ended.
    """
    kernel_count: int = 1


def granularity_of(mean_ns: float, blocks: int, slots: int) -> int:
    """Return the duration of one block, scaled by how far the grid fills the device's slots."""
    waves = max(-(-blocks // slots), 1) if slots else 1
    return max(round(mean_ns / waves * min(1.0, blocks / slots)), 1) if slots else 0


def estimate_launch(mean_ns: float, p90_ns: float, p99_ns: float, granularity_ns: int = 0) -> LaunchEstimate:
    """Return the estimate of a launch from its profile's quantiles.

    A kernel of very variable duration counts with twice its p99, or with its p99 if that is short: many kernels of a
    few microseconds vary so.
    """
    expect_ns = max(round(mean_ns), 1)  # 0 means unknown
    bound_ns = p90_ns if p99_ns <= VARIES * mean_ns else p99_ns if p99_ns <= SHORT_NS else 2 * p99_ns
    return LaunchEstimate(expect_ns, max(round(bound_ns), expect_ns), granularity_ns=granularity_ns)


class TenantGate:
    """The gate as one tenant's process uses it. `steps` holds the index of each launch into `works`.

    Whether launches must ask and be confirmed may change with every tenant table.
    """

    confirms = True

    def __init__(
        self,
        memory: WritableBuffer,
        process: tuple[int, int],
        works: Sequence[LaunchEstimate],
        steps: Sequence[int],
        slo_ns: int = 0,
    ) -> None:
        """Be the process of this index and generation on a device; `slo_ns` is the latency objective, or 0."""
        self._gate = _native.Gate(memory, *process)
        self._slo_ns = slo_ns
        self._works = [
            (work.expect_ns, work.sure_ns, (int(work.may_fill), work.granularity_ns, work.kernel_count))
            for work in works
        ]
        self._steps = steps
        self._base = len(works) + 2
        self._wait = len(works) + 1
        self._forecasts: dict[int, _native.Forecast] = {}
        self._key = 0
        self._last_ns = 0
        self._since_ns = -1
        self._asked_ns = 0
        self._request = (0, 0, 0, 0, 0, 0, 1)
        self._passing = self._request
        self._must_ask = True
        self.sleeps = self.spins = False
        self.confirms = self._gate.must_ask()

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Return `now_ns` if the launch passes; else the instant to ask again after sleeping (`sleeps`) or spinning."""
        gate = self._gate
        if since_ns != self._since_ns:
            self._arrive(step, since_ns)
        elif self.spins:
            gate.spun(now_ns - self._asked_ns, now_ns)
        elif self.sleeps:
            gate.slept(now_ns - self._asked_ns)
        request = self._request
        self._must_ask = self.confirms = gate.must_ask()
        if not self._must_ask:
            gate.announce(request, now_ns)
            return self._pass(now_ns)
        passes, reason, until_ns = gate.admit(request, since_ns, now_ns)
        if passes:
            if now_ns > since_ns:
                gate.waited(since_ns, now_ns)
            return self._pass(now_ns)
        sleep_ns, spin_ns = gate.wait_plan(reason, until_ns, now_ns)
        self._asked_ns = now_ns
        self.sleeps = sleep_ns > 0
        self.spins = not self.sleeps
        return max(sleep_ns or spin_ns, now_ns + 1)

    def submitted(self, now_ns: int) -> None:
        """Report that the driver has accepted the launch that passed last."""
        if self._must_ask:
            self._gate.submitted(self._passing, True, now_ns)

    def ended(self, step: int, now_ns: int) -> None:
        """Report that a launch has ended."""
        self._gate.confirmed(self._works[self._steps[step]][0], now_ns)

    def waits(self, now_ns: int) -> None:
        """Begin a call that waits for all work."""
        self._key = self._after(self._wait)
        self._gate.sync(*self._forecast(), False, now_ns)

    def drained(self, now_ns: int) -> bool:
        """End that call; return whether other tenants sleep and must be woken."""
        self._last_ns = now_ns
        self._gate.sync(*self._forecast(), True, now_ns)
        return self._gate.has_sleepers(now_ns)

    def began(self, due_ns: int) -> None:
        """Begin a request that arrived at `due_ns`, as `cotenant.request()` does."""
        self._gate.oldest(max(due_ns, 1))

    def served(self, due_ns: int, now_ns: int) -> None:
        """End that request."""
        self._gate.oldest(0)
        self._gate.requested(now_ns - due_ns, self._slo_ns)

    def _arrive(self, step: int, now_ns: int) -> None:
        """Handle a new launch: learn the host's interval, and forecast the next launch."""
        if self._last_ns:
            forecast = self._forecasts.get(self._key)
            if forecast is None:
                forecast = self._forecasts[self._key] = _native.Forecast()
            forecast.learn(max(now_ns - self._last_ns, 0))
        work = self._steps[step]
        self._key = self._after(work)
        expect_ns, sure_ns, preemption = self._works[work]
        self._request = (expect_ns, sure_ns, *self._forecast(), *preemption)
        self._since_ns = now_ns
        self.sleeps = self.spins = False

    def _pass(self, now_ns: int) -> int:
        self._passing = self._request
        self._last_ns = now_ns
        self.sleeps = self.spins = False
        return now_ns

    def _after(self, work: int) -> int:
        """Return the history of three launches with this one as the latest."""
        return (self._key * self._base + work + 1) % self._base**3

    def _forecast(self) -> tuple[int, int]:
        forecast = self._forecasts.get(self._key)
        return (0, 0) if forecast is None else (forecast.low_ns, forecast.high_ns)
