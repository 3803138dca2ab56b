"""The oracle: the most offline kernel time that is possible with knowledge of every online launch.

Given the gaps of the online tenant alone, the offline kernels in their order, without preemption and without overlap
with online kernels, and a total delay: the most offline kernel time. Running past the end of a gap is delay, and so is
switching back between time slices. For every number of completed kernels the smallest delay is kept, gap by gap;
dominated states are dropped.

Where the oracle differs from the gate, it has the advantage. It pays one poll at the beginning of a gap and sees ends
at once; its delays do not shorten later gaps; the remaining allowance is spent at any instant; and its host is never
late, unless it is slower than the device on average, in which case each kernel takes as long as its host.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.softgpu.sim.host import Costs
from cotenant.units.value import Value

STATES: Final = 512
"""States kept at once; beyond it every other one is dropped, without a measurable effect."""
_MAX_ROUNDS: Final = 100_000
_Ints: TypeAlias = npt.NDArray[np.int64]


class Plan(msgspec.Struct, frozen=True):
    """Completed work and its delay."""

    done_ns: int
    kernels: int
    delay_ns: int


class OfflineKernels(Value, frozen=True, kw_only=True):
    """The offline tenant: one repetition of its launches, which repeat for ever."""

    durations_ns: tuple[int, ...]
    intervals_ns: tuple[int, ...]
    """Host interval from each launch to the next."""

    def lengths_ns(self) -> _Ints:
        """Return the time that each kernel takes of a gap."""
        durations = np.array(self.durations_ns, dtype=np.int64)
        intervals = np.array(self.intervals_ns, dtype=np.int64)
        return np.maximum(durations, intervals) if intervals.sum() > durations.sum() else durations


def plan_of(
    gaps_ns: tuple[tuple[int, int], ...], offline: OfflineKernels, allowance_ns: int, switch_ns: int, costs: Costs
) -> Plan:
    """Return the plan with the most work within the allowed delay."""
    lengths = offline.lengths_ns()
    total_ns = allowance_ns + sum(close_ns - open_ns for open_ns, close_ns in gaps_ns)
    rounds = min(total_ns // max(int(lengths.sum()), 1) + 2, _MAX_ROUNDS)
    ends: _Ints = np.concatenate(([0], np.cumsum(np.tile(lengths, rounds))))
    done: _Ints = np.zeros(1, dtype=np.int64)
    delays: _Ints = np.zeros(1, dtype=np.int64)
    for open_ns, close_ns in gaps_ns:
        gap_ns = close_ns - open_ns - switch_ns - costs.poll_ns
        if gap_ns > 0:
            done, delays = _after_gap(done, delays, ends, gap_ns, allowance_ns, switch_ns)
    done = np.searchsorted(ends, ends[done] + (allowance_ns - delays), side="right") - 1
    max_kernels = int(done.max())
    launches = len(offline.durations_ns)
    done_ns = max_kernels // launches * sum(offline.durations_ns) + sum(offline.durations_ns[: max_kernels % launches])
    return Plan(done_ns, max_kernels, int(delays[int(done.argmax())]))


def _after_gap(
    done: _Ints, delays: _Ints, ends: _Ints, gap_ns: int, allowance_ns: int, switch_ns: int
) -> tuple[_Ints, _Ints]:
    """Extend states by all kernels that fit into a gap, or by one more; two beyond the end are never better."""
    begins = ends[done]
    fitting: _Ints = np.searchsorted(ends, begins + gap_ns, side="right") - 1
    spent: _Ints = delays + switch_ns
    over: _Ints = spent + ends[fitting + 1] - begins - gap_ns
    affordable = over <= allowance_ns
    if switch_ns:
        paid = (fitting > done) & (spent <= allowance_ns)
        all_done = np.concatenate((done, fitting[paid], fitting[affordable] + 1))
        all_delays = np.concatenate((delays, spent[paid], over[affordable]))
    else:
        all_done = np.concatenate((fitting, fitting[affordable] + 1))
        all_delays = np.concatenate((spent, over[affordable]))
    order = np.lexsort((-all_done, all_delays))
    all_done, all_delays = all_done[order], all_delays[order]
    best = np.maximum.accumulate(all_done)
    kept = np.concatenate(([True], all_done[1:] > best[:-1]))
    done, delays = all_done[kept], all_delays[kept]
    if len(done) > STATES:
        done, delays = np.append(done[:-1:2], done[-1]), np.append(delays[:-1:2], delays[-1])
    return done, delays
