"""How far is the replay of Muri's cluster from what was measured there? By policy, with what was fitted told apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.experiment.lab.muri import (
    LONGER_FITTED_ON,
    START_FITTED_ON,
    Costs,
    Run,
    fit_longer,
    fit_start,
    replay,
)
from cotenant.experiment.lab.muri_rules import INTERLEAVED, ORDERS
from cotenant.experiment.lab.workers import mapping
from cotenant.format.measured.muri import MuriEnd, MuriJob

ERROR_MOST: Final = 0.1
PART: Final = "replays"
FITTING: Final = "fits"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: measured on the cluster, replayed, and the errors."""

    policy: str
    jct_s: float
    replayed_jct_s: float
    jct_error: float
    makespan_s: float
    replayed_makespan_s: float
    makespan_error: float
    starts: int
    replayed_starts: int
    job_error_median: float
    """Of a job's completion time: half of the jobs are nearer than this."""
    bare_jct_error: float
    """With stages of interleaved jobs that take no longer than alone: nothing fitted but the start."""
    fitted: str
    """Which number was fitted on this policy; nothing: none, so that its errors are a judgement of everything."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All policies."""

    lab: str = "muri"
    source: str = "Rivendile/Muri (SIGCOMM 2022), 400 jobs on 8 nodes of 8 V100"
    jobs: int
    costs: Costs
    judged: list[Judged]
    met: dict[str, bool]


def judge_muri(
    jobs: Sequence[MuriJob],
    results: Mapping[str, Mapping[int, MuriEnd]],
    workers: int,
    progress: Callable[[str, int, int], None],
) -> Report:
    """Every policy of which there are results; the number of workers changes nothing."""
    progress(FITTING, 0, 2)
    start_s = fit_start(jobs, results[START_FITTED_ON]) if START_FITTED_ON in results else 0.0
    progress(FITTING, 1, 2)
    longer = fit_longer(jobs, results[LONGER_FITTED_ON], start_s) if LONGER_FITTED_ON in results else 1.0
    progress(FITTING, 2, 2)
    costs, bare = Costs(start_s, longer), Costs(start_s)
    asked = [(policy, costs) for policy in ORDERS if policy in results]
    asked += [(policy, bare) for policy, _ in asked if policy in INTERLEAVED]
    runs: dict[tuple[str, Costs], Run] = {}
    progress(PART, 0, len(asked))
    with mapping(workers) as mapped:
        policies, numbers = [one for one, _ in asked], [one for _, one in asked]
        for key, run in zip(asked, mapped(replay, [jobs] * len(asked), policies, numbers), strict=True):
            runs[key] = run
            progress(PART, len(runs), len(asked))
    judged = [
        _judged(policy, jobs, results[policy], runs[policy, costs], runs.get((policy, bare), runs[policy, costs]))
        for policy, given in asked
        if given is costs
    ]
    met = {f"{one.policy}: mean completion time within 10 %": abs(one.jct_error) <= ERROR_MOST for one in judged}
    met |= {f"{one.policy}: makespan within 10 %": abs(one.makespan_error) <= ERROR_MOST for one in judged}
    return Report(jobs=len(jobs), costs=costs, judged=judged, met=met)


def _judged(policy: str, jobs: Sequence[MuriJob], ends: Mapping[int, MuriEnd], run: Run, bare: Run) -> Judged:
    measured_s = {job.number: ends[job.number].jct_s for job in jobs}
    mean_s = statistics.fmean(measured_s.values())
    makespan_s = max(end.ended_s for end in ends.values())
    replayed_s = {job.number: run.ends_s[job.number] - job.submitted_s for job in jobs}
    replayed_mean_s, replayed_makespan_s = statistics.fmean(replayed_s.values()), max(run.ends_s.values())
    bare_mean_s = statistics.fmean(bare.ends_s[job.number] - job.submitted_s for job in jobs)
    fitted = {START_FITTED_ON: "the cost of a start", LONGER_FITTED_ON: "how much longer interleaved steps take"}
    return Judged(
        policy=policy,
        jct_s=mean_s,
        replayed_jct_s=replayed_mean_s,
        jct_error=replayed_mean_s / mean_s - 1,
        makespan_s=makespan_s,
        replayed_makespan_s=replayed_makespan_s,
        makespan_error=replayed_makespan_s / makespan_s - 1,
        starts=sum(end.starts for end in ends.values()),
        replayed_starts=run.starts,
        job_error_median=statistics.median(abs(replayed_s[one] / measured_s[one] - 1) for one in measured_s),
        bare_jct_error=bare_mean_s / mean_s - 1,
        fitted=fitted.get(policy, ""),
    )
