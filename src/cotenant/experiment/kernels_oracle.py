"""The oracle: who knows every future launch of the tenant above, what is the most that could be done below?

Given the gaps of the online tenant as it runs alone, the offline kernels in their order, none preempted, none beside an
online kernel, and a total delay that may be spent: the most offline kernel time. In each gap kernels run one after the
other as their host launches them; what runs past the gap's end is delay, and so is, between time slices, changing
back. States (delay spent, kernels done) that another state beats in both are dropped, and the best remains.

It is held to what holds for the gate and favoured otherwise: it sees ends and gaps at once, pays one poll of a spinning
host at the beginning of a gap, and its delays do not shorten later gaps, as a pause before a periodic request would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from cotenant.domain.value import Value
from cotenant.sim.kernels_host import Costs

STATES: Final = 48
"""Kept at once. Beyond it the delay is divided into so many parts and the best of each is kept."""


class Gapped(Value, frozen=True):
    """The online tenant alone: its gaps in order, and when it ended."""

    gaps_ns: tuple[tuple[int, int], ...]
    end_ns: int


class Plan(msgspec.Struct, frozen=True):
    """How much is done, at what delay, and in which gap each offline kernel runs."""

    done_ns: int
    kernels: int
    delay_ns: int
    gaps: tuple[tuple[int, int], ...]
    """Those that are used: their number, and how many kernels have been done by their end."""


class Below(Value, frozen=True, kw_only=True):
    """The offline tenant: one round of its launches, which goes on for ever."""

    durations_ns: tuple[int, ...]
    intervals_ns: tuple[int, ...]
    """Of its host, from each launch to the next."""


_Path: TypeAlias = "tuple[int, int, _Path] | None"
_State: TypeAlias = tuple[int, int, int, _Path]
"""Delay spent, kernels done, when the host may launch again, and the gaps used: the last, and before."""


def plan_of(online: Gapped, below: Below, allowance_ns: int, switch_ns: int, costs: Costs) -> Plan:
    """The plan that does the most at no more delay than the allowance."""
    states: list[_State] = [(0, 0, 0, None)]
    last = len(online.gaps_ns) - 1
    for number, gap in enumerate(online.gaps_ns):
        most_over = len(below.durations_ns) if number == last else 1
        more = [
            (state[0] + delay_ns, state[1] + count, free_ns, (number, state[1] + count, state[3]))
            for state in states
            for delay_ns, count, free_ns in _fillings(gap, below, state, allowance_ns, switch_ns, costs, most_over)
        ]
        if more:
            states = _best([*states, *more], allowance_ns)
    return _plan(max(states, key=lambda state: (state[1], -state[0])), below)


def _fillings(
    gap: tuple[int, int],
    below: Below,
    state: _State,
    allowance_ns: int,
    switch_ns: int,
    costs: Costs,
    most_over: int,
) -> Iterator[tuple[int, int, int]]:
    """What can be done in one gap: all that fits, and then one kernel more. Delay, kernels, when the host is free.

    Two kernels past the end of a gap are no better than one there and one in the next, except in the last gap.
    """
    durations_ns, intervals_ns = below.durations_ns, below.intervals_ns
    each, close_ns = len(durations_ns), gap[1]
    spare_ns = allowance_ns - state[0] - switch_ns
    launch_ns = max(gap[0] + switch_ns + costs.poll_ns, state[2])
    kernel, count, over = state[1] % each, 0, 0
    end_ns = launch_ns
    if spare_ns < 0 or launch_ns + durations_ns[kernel] - close_ns > spare_ns:
        return
    while over < most_over:
        end_ns = (launch_ns if launch_ns > end_ns else end_ns) + durations_ns[kernel]
        over_ns = end_ns - close_ns
        if over_ns > spare_ns:
            return
        over += over_ns > 0
        count += 1
        launch_ns += intervals_ns[kernel]
        kernel += 1
        if kernel == each:
            kernel = 0
            launch_ns = max(launch_ns, end_ns + costs.sync_ns)
        if (launch_ns if launch_ns > end_ns else end_ns) + durations_ns[kernel] > close_ns:
            yield switch_ns + max(over_ns, 0), count, launch_ns


def _best(states: list[_State], allowance_ns: int) -> list[_State]:
    """Those that no other beats by less delay and more done."""
    states.sort(key=lambda state: (state[0], -state[1], state[2]))
    kept: list[_State] = []
    most = -1
    for state in states:
        if state[1] > most:
            kept.append(state)
            most = state[1]
    if len(kept) <= STATES:
        return kept
    thinned: dict[int, _State] = {}
    for state in kept:
        thinned[state[0] * STATES // (allowance_ns + 1)] = state  # the last of each part has done the most
    first = kept[0]
    return [first, *(state for state in thinned.values() if state is not first)]


def _plan(best: _State, below: Below) -> Plan:
    delay_ns, done, _, path = best
    gaps: list[tuple[int, int]] = []
    while path is not None:
        number, by_then, path = path
        gaps.append((number, by_then))
    gaps.reverse()
    rounds, rest = divmod(done, len(below.durations_ns))
    done_ns = rounds * sum(below.durations_ns) + sum(below.durations_ns[:rest])
    return Plan(done_ns, done, delay_ns, tuple(gaps))
