"""One process of a tenant at the gate: drives the gate's C code as the hook does inside a process.

It keeps a forecast of the host's next launch for each history of three launches (a blocking call counts as one), and
asks the gate for each launch until it passes. Instants are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from cotenant import _native
from cotenant.gate.launch_estimate import LaunchEstimate, free_part, granularity_of
from cotenant.gate.learned_times import LearnedTimes
from cotenant.gate.tenant_table import WritableBuffer
from cotenant.units.instant import MICROSECOND_NS

_EXTENSION_NS: Final = 30 * MICROSECOND_NS
"""By how much the expected end of overdue work moves each time it is asked for (EXTENSION_NS in the hook)."""


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
        times: LearnedTimes | None = None,
        sm_step_ppm: int | None = None,
    ) -> None:
        """Be the process of this index and generation on a device; `slo_ns` is the latency objective, or 0.

        With `times`, durations are learned as the program runs, and those in `works` are not used. `sm_step_ppm`: the
        process is an MPS client, and can limit its launches to multiples of this part of the SMs (0: it cannot).
        """
        self._gate = _native.Gate(memory, *process)
        if sm_step_ppm is not None:
            self._gate.share_by_mps(sm_step_ppm)
        self._slo_ns = slo_ns
        self._times = times
        self.learns = times is not None
        self._admitted: list[deque[tuple[int, int]]] = [deque() for _ in works]
        self._works = [
            (work.expect_ns, work.sure_ns, (int(work.may_fill), work.granularity_ns, work.kernel_count, work.free_ppm))
            for work in works
        ]
        self._grids = [(work.blocks, work.wave_blocks) for work in works]
        self._rest_blocks = 0  # of a launch of which a part has passed
        self._is_rest = False
        self._outstanding = 0
        self._steps = steps
        self._base = len(works) + 2
        self._wait = len(works) + 1
        self._forecasts: dict[int, _native.Forecast] = {}
        self._key = 0
        self._last_ns = 0
        self._since_ns = -1
        self._asked_ns = 0
        self._work = 0
        self._request = (0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)
        self._whole = self._passing = self._request
        self._must_ask = True
        self.sleeps = self.spins = False
        self.sm_ppm = self.part_blocks = 0
        self.confirms = self._gate.must_ask()

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Return `now_ns` if the launch passes; else the instant to ask again after sleeping (`sleeps`) or spinning."""
        gate = self._gate
        if since_ns != self._since_ns:
            if self._rest_blocks:
                self._continue(since_ns)
            else:
                self._arrive(step, since_ns)
        elif self.spins:
            gate.spun(now_ns - self._asked_ns, now_ns)
        elif self.sleeps:
            gate.slept(now_ns - self._asked_ns)
        request = self._request
        self._must_ask = self.confirms = gate.must_ask()
        if not self._must_ask:
            self.sm_ppm, self.part_blocks = gate.announce(request, now_ns), 0
            return self._pass(now_ns)
        if self._outstanding and gate.busy_ns() <= now_ns:  # it should have ended and has not
            gate.prolong(now_ns + _EXTENSION_NS)
        passes, reason, until_ns, expect_ns, self.sm_ppm, self.part_blocks = gate.admit(request, since_ns, now_ns)
        if passes:
            self._request = (expect_ns, *request[1:])
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

    def ended(self, step: int, length_ns: int, now_ns: int) -> None:
        """Report that a launch has ended, and how long it took."""
        work = self._steps[step]
        expect_ns, part_blocks = 0, 0
        if self._admitted[work]:
            expect_ns, part_blocks = self._admitted[work].popleft()
            self._outstanding -= 1
        if self._times is not None:
            if part_blocks:
                blocks, wave_blocks = self._grids[work]
                length_ns = _native.slice_time(length_ns, part_blocks, blocks, wave_blocks)
            self._times.ended(work, length_ns, self._gate, now_ns)
        if self.confirms or self._must_ask:
            self._gate.confirmed(expect_ns, now_ns)

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
        self._gate.oldest(max(due_ns, 1), self._slo_ns)

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
        self._work = work
        if self._times is None:
            expect_ns, sure_ns, preemption = self._works[work]
            doubtful = 0
        else:
            expect_ns, sure_ns, preemption, doubtful = self._times.estimate(work, self._gate.clock_ppm())
        self._request = (expect_ns, sure_ns, *self._forecast(), *preemption, doubtful, *self._grids[work])
        self._whole = self._request
        self._is_rest = False
        self._since_ns = now_ns
        self.sleeps = self.spins = False

    def _continue(self, since_ns: int) -> None:
        """Handle the rest of a launch of which a part has passed."""
        expect_ns, sure_ns, low_ns, high_ns, may_fill, granularity_ns, count, free_ppm, doubtful, blocks, wave = (
            self._whole
        )
        rest = self._rest_blocks
        expect_ns, sure_ns = (_native.slice_time(length_ns, blocks, rest, wave) for length_ns in (expect_ns, sure_ns))
        if granularity_ns:
            granularity_ns, free_ppm = granularity_of(expect_ns, rest, wave), free_part(rest, wave)
        times = (expect_ns, sure_ns, low_ns, high_ns)
        self._request = (*times, may_fill, granularity_ns, count, free_ppm, doubtful, rest, wave)
        self._is_rest = True
        self._since_ns = since_ns
        self.sleeps = self.spins = False

    def _pass(self, now_ns: int) -> int:
        self._passing = self._request
        if self._must_ask:
            self._outstanding += 1
            rest_blocks = self._request[9] if self._is_rest else 0
            self._admitted[self._work].append((self._request[0], self.part_blocks or rest_blocks))
        self._rest_blocks = self._request[9] - self.part_blocks if self.part_blocks else 0
        if self._times is not None:
            self._times.launched(self._work, self._gate, now_ns)
        self._last_ns = now_ns
        self._since_ns = -1
        self.sleeps = self.spins = False
        return now_ns

    def _after(self, work: int) -> int:
        """Return the history of three launches with this one as the latest."""
        return (self._key * self._base + work + 1) % self._base**3

    def _forecast(self) -> tuple[int, int]:
        forecast = self._forecasts.get(self._key)
        return (0, 0) if forecast is None else (forecast.low_ns, forecast.high_ns)
