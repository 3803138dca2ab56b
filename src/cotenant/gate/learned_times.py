"""Kernel times that a simulated process learns while it runs, with the hook's C code (native/gate/duration.h).

As in the hook, the first launches of a kernel and a sample of the later ones are measured. A measurement next to an
active neighbour is only a bound. The time of an unseen grid is estimated from other grids of the same function.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from cotenant import _native
from cotenant.gate.launch_estimate import estimate_launch, free_part, granularity_of
from cotenant.units.value import Value

TRIES: Final = 8
"""Launches that are measured because the kernel's time is unknown or doubtful."""
SAMPLE: Final = 64
"""Of the other launches, one in this many is measured."""
_PENDING_LIMIT: Final = 16


class KernelLayout(Value, frozen=True):
    """What a process knows of a kernel before it has run."""

    function: str
    blocks: int = 1
    slots: int = 0
    """Blocks of it that run at once, if they give way to work of higher priority; 0: they do not."""
    kernel_count: int = 1

    @property
    def free_ppm(self) -> int:
        """Return the part of the device that stays free while it runs."""
        return free_part(self.blocks, self.slots) if self.kernel_count == 1 else 0


_Quiescence = tuple[int, int, int, int]


class LearnedTimes:
    """The kernel times of one process."""

    def __init__(self, layouts: Sequence[KernelLayout], seed: int = 0) -> None:
        """Begin without any measurement."""
        self._layouts = layouts
        self._durations = [_native.Duration() for _ in layouts]
        self._tries = [0] * len(layouts)
        self._pending: list[deque[_Quiescence | None]] = [deque() for _ in layouts]
        self._measuring = 0
        self._rng = random.Random(seed)
        self._shapes: dict[str, list[int]] = {}
        for number, layout in enumerate(layouts):
            self._shapes.setdefault(layout.function, []).append(number)

    def profile(self, number: int, mean_ns: float, p90_ns: float, p99_ns: float) -> None:
        """Start with the profile of a kernel."""
        self._durations[number].from_profile(round(mean_ns), round(p90_ns), round(p99_ns))

    def estimate(self, number: int, clock_ppm: int) -> tuple[int, int, tuple[int, int, int, int], int]:
        """Return expected and upper time, what the device does meanwhile, and whether the time is doubtful."""
        layout, duration = self._layouts[number], self._durations[number]
        expect_ns, p90_ns, p99_ns, doubtful = duration.expected(clock_ppm)
        if not expect_ns:
            expect_ns = self._estimate_from_other_shapes(number, clock_ppm)
            if not expect_ns:
                return 0, 0, (0, 0, layout.kernel_count, layout.free_ppm), 1
            p90_ns = p99_ns = 2 * expect_ns
        if layout.kernel_count > 1:
            granularity_ns = expect_ns // layout.kernel_count if layout.slots else 0
        else:
            granularity_ns = granularity_of(expect_ns, layout.blocks, layout.slots)
        estimate = estimate_launch(expect_ns, p90_ns, p99_ns, granularity_ns)
        conditions = (1, granularity_ns, layout.kernel_count, layout.free_ppm)
        return estimate.expect_ns, estimate.sure_ns, conditions, int(doubtful)

    def launched(self, number: int, gate: _native.Gate, now_ns: int) -> None:
        """Decide whether a launch that passed is measured."""
        duration = self._durations[number]
        unknown = not duration.count or duration.expected(0)[3]
        is_measured = self._measuring < _PENDING_LIMIT and (
            (unknown and self._tries[number] < TRIES) or self._rng.randrange(SAMPLE) == 0
        )
        self._tries[number] += is_measured and unknown
        self._measuring += is_measured
        self._pending[number].append(gate.quiescence(now_ns) if is_measured else None)

    def ended(self, number: int, length_ns: int, gate: _native.Gate, now_ns: int) -> None:
        """Learn from a launch that was measured; launches of one kernel end in their order."""
        before = self._pending[number].popleft() if self._pending[number] else None
        if before is None:
            return
        self._measuring -= 1
        is_clean = gate.was_quiescent(before, length_ns, now_ns)
        self._durations[number].learn(length_ns, gate.clock_ppm(), not is_clean)

    def _estimate_from_other_shapes(self, number: int, clock_ppm: int) -> int:
        layout = self._layouts[number]
        measured = [
            (max(layout.blocks, other.blocks) / max(min(layout.blocks, other.blocks), 1), shape, other)
            for shape in self._shapes[layout.function]
            if (other := self._layouts[shape]) is not layout and self._durations[shape].count
        ]
        if not measured:
            return 0
        _, shape, other = min(measured, key=lambda entry: entry[:2])
        expect_ns = self._durations[shape].expected(clock_ppm)[0]
        return _native.duration_for_grid(expect_ns, layout.blocks, other.blocks, layout.slots)
