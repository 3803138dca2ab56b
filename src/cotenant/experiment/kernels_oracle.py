"""The oracle: who knows every future launch of the tenant above, what is the most that could be done below?

Given the gaps of the online tenant as it runs alone, the offline kernels in their order, none preempted, none beside an
online kernel, and a total delay that may be spent: the most offline kernel time. What runs past the end of a gap is
delay, and so is, between time slices, changing back. For every number of kernels done the least delay is kept, gap by
gap; what another number beats in both is dropped.

It is held to what holds for the gate and favoured otherwise. It pays one poll of a spinning host at the beginning of a
gap; it sees ends at once; its delays do not shorten later gaps, as a pause before a periodic request would be; what is
left of the allowance in the end is spent at any instant; and its host is never late, unless it takes longer than the
device in the mean: then each kernel takes as long as its host.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.domain.value import Value
from cotenant.sim.kernels_host import Costs

STATES: Final = 512
"""Kept at once; beyond it every other one, which has not been seen to matter."""
_ROUNDS_MOST: Final = 100_000
_Ints: TypeAlias = npt.NDArray[np.int64]


class Plan(msgspec.Struct, frozen=True):
    """How much is done, and at what delay."""

    done_ns: int
    kernels: int
    delay_ns: int


class Below(Value, frozen=True, kw_only=True):
    """The offline tenant: one round of its launches, which goes on for ever."""

    durations_ns: tuple[int, ...]
    intervals_ns: tuple[int, ...]
    """Of its host, from each launch to the next."""

    def lengths_ns(self) -> _Ints:
        """What each kernel takes of a gap."""
        durations = np.array(self.durations_ns, dtype=np.int64)
        intervals = np.array(self.intervals_ns, dtype=np.int64)
        return np.maximum(durations, intervals) if intervals.sum() > durations.sum() else durations


def plan_of(
    gaps_ns: tuple[tuple[int, int], ...], below: Below, allowance_ns: int, switch_ns: int, costs: Costs
) -> Plan:
    """The plan that does the most at no more delay than the allowance."""
    lengths = below.lengths_ns()
    whole_ns = allowance_ns + sum(close_ns - open_ns for open_ns, close_ns in gaps_ns)
    rounds = min(whole_ns // max(int(lengths.sum()), 1) + 2, _ROUNDS_MOST)
    ends: _Ints = np.concatenate(([0], np.cumsum(np.tile(lengths, rounds))))
    done: _Ints = np.zeros(1, dtype=np.int64)
    delays: _Ints = np.zeros(1, dtype=np.int64)
    for open_ns, close_ns in gaps_ns:
        room_ns = close_ns - open_ns - switch_ns - costs.poll_ns
        if room_ns > 0:
            done, delays = _after_gap(done, delays, ends, room_ns, allowance_ns, switch_ns)
    done = np.searchsorted(ends, ends[done] + (allowance_ns - delays), side="right") - 1
    most = int(done.max())
    each = len(below.durations_ns)
    done_ns = most // each * sum(below.durations_ns) + sum(below.durations_ns[: most % each])
    return Plan(done_ns, most, int(delays[int(done.argmax())]))


def _after_gap(
    done: _Ints, delays: _Ints, ends: _Ints, room_ns: int, allowance_ns: int, switch_ns: int
) -> tuple[_Ints, _Ints]:
    """All that fits, or that and one kernel more; two past the end are no better than one here and one in the next."""
    begins = ends[done]
    fitting: _Ints = np.searchsorted(ends, begins + room_ns, side="right") - 1
    spent: _Ints = delays + switch_ns
    over: _Ints = spent + ends[fitting + 1] - begins - room_ns
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
