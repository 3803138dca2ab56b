"""Replay Muri's trace under its six policies on 8 nodes of 8 GPUs.

As in the published experiment, decisions are made every 360 s, and only if a job arrived, ended or changed its queue;
then all jobs are restarted, which costs each of them `start_s`. GPUs of a job that ends stay idle until then. The trace
gives the duration of a job alone. Two parameters are not published and are fitted, each on one policy, and evaluated on
others. The replay uses neither the cluster controller nor the simulator of this project.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cotenant_lab.data.muri import MuriEnd, MuriJob
from cotenant_lab.study.muri.groups import NODE_GPUS, Periods, chosen_for, interleave, rates, take
from cotenant_lab.study.muri.rules import GPUS, INTERLEAVED, ORDERS, QUEUES, ActiveJob, demote

ROUND_S: Final = 360.0
GROUP_MOST: Final = 4
START_FITTED_ON: Final = "SRTF"
LONGER_FITTED_ON: Final = "Muri-S"
_LONGER: Final = (1.2, 1.4)
"""Initial values of the search."""
_TRIES: Final = 2
_NEAR: Final = 0.01


class Costs(msgspec.Struct, frozen=True):
    """Parameters that are not published; the same for every policy."""

    start_s: float
    """Time from a decision until a job works."""
    longer: float = 1.0
    """Factor by which interleaved steps take longer than their phases alone."""


class ReplayResult(msgspec.Struct, frozen=True):
    """Result of a replay."""

    ends_s: dict[int, float]
    held_s: float
    """GPUs times time of all jobs, including interleaved ones."""
    starts: int


def fit_start(jobs: Sequence[MuriJob], ends: Mapping[int, MuriEnd]) -> float:
    """Fit by least squares of the relative error: time with GPUs is time alone plus a cost for each start."""
    numerator = denominator = 0.0
    for end, job in ((ends[job.number], job) for job in jobs if job.number in ends):
        numerator += end.starts * (end.ran_s - job.alone_s) / end.ran_s**2
        denominator += (end.starts / end.ran_s) ** 2
    return max(numerator / denominator, 0.0) if denominator else 0.0


def fit_longer(jobs: Sequence[MuriJob], ends: Mapping[int, MuriEnd], start_s: float) -> float:
    """Fit by interpolation such that jobs hold GPUs for as long as measured; completion times are not used."""
    aim_s = sum(ends[job.number].ran_s * job.gpus for job in jobs)
    trials = [(value, replay(jobs, LONGER_FITTED_ON, Costs(start_s, value)).held_s) for value in _LONGER]
    for _ in range(_TRIES):
        (low, low_s), (high, high_s) = sorted(sorted(trials, key=lambda value: abs(value[1] - aim_s))[:2])
        if high_s == low_s or min(abs(held_s / aim_s - 1) for _, held_s in trials) < _NEAR:
            break
        longer = min(max(low + (aim_s - low_s) * (high - low) / (high_s - low_s), 1.0), 2.0)
        trials.append((longer, replay(jobs, LONGER_FITTED_ON, Costs(start_s, longer)).held_s))
    return min(trials, key=lambda value: abs(value[1] - aim_s))[0]


def replay(jobs: Sequence[MuriJob], policy: str, costs: Costs) -> ReplayResult:
    """Replay until the last job has ended."""
    return _Replay(jobs, policy, costs).run()


class _Replay:
    """One replay of the cluster."""

    def __init__(self, jobs: Sequence[MuriJob], policy: str, costs: Costs) -> None:
        self._coming = sorted(jobs, key=lambda job: (job.submitted_s, job.number))
        self._policy = policy
        self._costs = costs
        self._live: list[ActiveJob] = []
        self._groups: list[list[ActiveJob]] = []
        self._ready_s = 0.0
        self._periods = Periods()
        self._ended: list[tuple[ActiveJob, float]] = []

    def run(self) -> ReplayResult:
        now_s, changed = 0.0, True
        while self._coming or self._live:
            changed |= self._admit(now_s)
            if self._policy == "Tiresias":
                changed |= demote(self._live)
            if changed:
                self._decide(now_s)
            then_s = self._next_round(now_s)
            changed = self._advance(now_s, then_s)
            now_s = then_s
        return ReplayResult(
            {active.job.number: end_s for active, end_s in self._ended},
            sum(active.had_s * active.job.gpus for active, _ in self._ended),
            sum(active.starts for active, _ in self._ended),
        )

    def _admit(self, now_s: float) -> bool:
        submitted = [job for job in self._coming if job.submitted_s <= now_s]
        self._coming = self._coming[len(submitted) :]
        self._live += [ActiveJob(job) for job in submitted]
        return bool(submitted)

    def _decide(self, now_s: float) -> None:
        order = ORDERS[self._policy](self._live, now_s) if self._live else []
        free = [NODE_GPUS] * (GPUS // NODE_GPUS)
        if self._policy in INTERLEAVED:
            groups = interleave(chosen_for(order, list(free), GROUP_MOST), GPUS, GROUP_MOST, self._periods)
            groups.sort(key=lambda group: -group[0].job.gpus)
        else:
            groups = [[active] for active in order]
        self._groups = [group for group in groups if take(free, group[0].job.gpus)]
        for active in self._live:
            active.runs = False
        for active in (active for group in self._groups for active in group):
            active.runs = True
            active.starts += 1
        self._live.sort(key=lambda active: not active.runs)
        self._ready_s = now_s + self._costs.start_s

    def _next_round(self, now_s: float) -> float:
        """Return the first decision instant at which the state can have changed."""
        instants = [self._coming[0].submitted_s] if self._coming else []
        begin_s = max(now_s, self._ready_s)
        for group in self._groups:
            speeds = rates(group, self._periods, self._costs.longer)
            instants += [begin_s + active.left_s / speed for active, speed in zip(group, speeds, strict=True)]
            if self._policy == "Tiresias":
                for active in group:
                    limits = QUEUES[active.queue : active.queue + 1]
                    instants += [now_s + limit / active.job.gpus - active.had_s for limit in limits]
        return max(math.ceil(min(instants) / ROUND_S - 1e-9), math.floor(now_s / ROUND_S + 1e-9) + 1) * ROUND_S

    def _advance(self, now_s: float, then_s: float) -> bool:
        """Advance all jobs; return whether any ended."""
        ended_before = len(self._ended)
        for group in self._groups:
            at_s = now_s
            while group and at_s < then_s:
                at_s = self._work(group, at_s, then_s)
        self._groups = [group for group in self._groups if group]
        return len(self._ended) > ended_before

    def _work(self, group: list[ActiveJob], at_s: float, then_s: float) -> float:
        """Advance a group until its first job ends, after which the others are faster."""
        begin_s = max(at_s, min(self._ready_s, then_s))
        speeds = rates(group, self._periods, self._costs.longer)
        first_s = min(active.left_s / speed for active, speed in zip(group, speeds, strict=True))
        until_s = min(then_s, begin_s + first_s)
        for active, speed in zip(group, speeds, strict=True):
            active.had_s += until_s - at_s
            active.left_s -= (until_s - begin_s) * speed
        for active in [active for active in group if active.left_s <= 1e-6]:
            group.remove(active)
            self._live.remove(active)
            self._ended.append((active, until_s))
        return until_s
