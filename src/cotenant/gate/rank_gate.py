"""A process of a job with ranks on several devices at the gate of its own device."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence

from cotenant import _native
from cotenant.gate.launch_estimate import LaunchEstimate
from cotenant.gate.learned_times import LearnedTimes
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import WritableBuffer


def gang_page() -> memoryview:
    """Return the page of a gang without ranks, in private memory."""
    return memoryview(mmap.mmap(-1, _native.GANG_BYTES))


def free_rank(page: WritableBuffer, generation: int) -> None:
    """Free the entry of a rank whose process has ended, as the node does."""
    _native.gang_leave(page, generation)


class RankGate(TenantGate):
    """Launches collectives together with the other ranks of a page, or alone without one.

    Used only on devices with tenants of higher priority: a rank without them would not ask.
    """

    def __init__(
        self,
        memory: WritableBuffer,
        process: tuple[int, int],
        works: Sequence[LaunchEstimate],
        steps: Sequence[int],
        collectives: Collection[int],
        *,
        gang: tuple[WritableBuffer, int] | None = None,
        times: LearnedTimes | None = None,
        sm_step_ppm: int | None = None,
    ) -> None:
        """`collectives` are the steps that launch one; `gang` is the page of the ranks, and their number."""
        super().__init__(memory, process, works, steps, times=times, sm_step_ppm=sm_step_ppm)
        self._collectives = frozenset(collectives)
        if gang is not None:
            self._gate.join_gang(*gang)

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Ask for a launch, saying whether it is a collective."""
        self._gate.set_collective(step in self._collectives)
        return super().ask(step, since_ns, now_ns)
