"""Report of study `muri`: errors of the replay by policy, and which policy each parameter was fitted on."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant_lab.data.muri import MuriEnd, MuriJob, read_result, read_trace
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes, missing_data
from cotenant_lab.study.muri.rules import INTERLEAVED, ORDERS
from cotenant_lab.study.muri.run import (
    LONGER_FITTED_ON,
    START_FITTED_ON,
    Costs,
    ReplayResult,
    fit_longer,
    fit_start,
    replay,
)
from cotenant_lab.study.progress import show_parts
from cotenant_lab.study.workers import mapping

ERROR_MOST: Final = 0.1
PART: Final = "replays"
FITTING: Final = "fits"
_TRACE: Final = "muri/cluster_trace.csv"
FILES: Final = {policy: policy if policy.startswith(("S", "M")) else policy.lower() for policy in ORDERS}


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
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
    """Median error of a job's completion time."""
    bare_jct_error: float
    """With interleaved phases that take no longer than alone: only the cost of a start is fitted."""
    fitted: str
    """The parameter that was fitted on this policy; empty: none."""


class MuriReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of study `muri`."""

    lab: str = "muri"
    source: str = "Rivendile/Muri (SIGCOMM 2022), 400 jobs on 8 nodes of 8 V100"
    jobs: int
    costs: Costs
    results: list[PolicyResult]
    met: dict[str, bool]


def evaluate_muri(
    jobs: Sequence[MuriJob],
    results: Mapping[str, Mapping[int, MuriEnd]],
    workers: int,
    progress: Callable[[str, int, int], None],
) -> MuriReport:
    """Replay every policy that has results; the number of workers does not change them."""
    progress(FITTING, 0, 2)
    start_s = fit_start(jobs, results[START_FITTED_ON]) if START_FITTED_ON in results else 0.0
    progress(FITTING, 1, 2)
    longer = fit_longer(jobs, results[LONGER_FITTED_ON], start_s) if LONGER_FITTED_ON in results else 1.0
    progress(FITTING, 2, 2)
    costs, bare = Costs(start_s, longer), Costs(start_s)
    tasks = [(policy, costs) for policy in ORDERS if policy in results]
    tasks += [(policy, bare) for policy, _ in tasks if policy in INTERLEAVED]
    runs: dict[tuple[str, Costs], ReplayResult] = {}
    progress(PART, 0, len(tasks))
    with mapping(workers) as mapped:
        policies, numbers = [result for result, _ in tasks], [result for _, result in tasks]
        for key, run in zip(tasks, mapped(replay, [jobs] * len(tasks), policies, numbers), strict=True):
            runs[key] = run
            progress(PART, len(runs), len(tasks))
    policy_results = [
        _policy_result(
            policy, jobs, results[policy], runs[policy, costs], runs.get((policy, bare), runs[policy, costs])
        )
        for policy, task_costs in tasks
        if task_costs is costs
    ]
    met = {
        f"{result.policy}: mean completion time within 10 %": abs(result.jct_error) <= ERROR_MOST
        for result in policy_results
    }
    met |= {
        f"{result.policy}: makespan within 10 %": abs(result.makespan_error) <= ERROR_MOST for result in policy_results
    }
    return MuriReport(jobs=len(jobs), costs=costs, results=policy_results, met=met)


def _policy_result(
    policy: str, jobs: Sequence[MuriJob], ends: Mapping[int, MuriEnd], run: ReplayResult, bare: ReplayResult
) -> PolicyResult:
    measured_s = {job.number: ends[job.number].jct_s for job in jobs}
    mean_s = statistics.fmean(measured_s.values())
    makespan_s = max(end.ended_s for end in ends.values())
    replayed_s = {job.number: run.ends_s[job.number] - job.submitted_s for job in jobs}
    replayed_mean_s, replayed_makespan_s = statistics.fmean(replayed_s.values()), max(run.ends_s.values())
    bare_mean_s = statistics.fmean(bare.ends_s[job.number] - job.submitted_s for job in jobs)
    fitted = {START_FITTED_ON: "the cost of a start", LONGER_FITTED_ON: "how much longer interleaved steps take"}
    return PolicyResult(
        policy=policy,
        jct_s=mean_s,
        replayed_jct_s=replayed_mean_s,
        jct_error=replayed_mean_s / mean_s - 1,
        makespan_s=makespan_s,
        replayed_makespan_s=replayed_makespan_s,
        makespan_error=replayed_makespan_s / makespan_s - 1,
        starts=sum(end.starts for end in ends.values()),
        replayed_starts=run.starts,
        job_error_median=statistics.median(abs(replayed_s[number] / measured_s[number] - 1) for number in measured_s),
        bare_jct_error=bare_mean_s / mean_s - 1,
        fitted=fitted.get(policy, ""),
    )


def run_muri(directory: Path, console: Console, report: Callable[[str], None], *, quick: bool) -> MuriReport:
    """Run the study with a progress bar on a terminal, or one line per part elsewhere."""
    path = directory / _TRACE
    if not path.exists():
        raise missing_data(path)
    jobs = read_trace(measurement_bytes(path), str(path))
    results = {}
    for policy, name in FILES.items():
        result_path = directory / "muri" / f"physical_result_{name}.job.csv.gz"
        if quick and policy.startswith("Muri"):
            continue
        if result_path.exists():
            results[policy] = read_result(measurement_bytes(result_path), str(result_path))
            missing = [job.number for job in jobs if job.number not in results[policy]]
            if missing:
                raise ConfigError("job_id", missing[0], f"has no result; {DATA_PAGE}", where=str(result_path))
        else:
            report(f"omitted: {policy}: {result_path} does not exist")
    if not results or not jobs:
        raise ConfigError("data", str(path.parent), f"has no job or no result; {DATA_PAGE}")
    with show_parts(console, report, "to do") as progress:
        return evaluate_muri(jobs, results, 1 if quick else os.cpu_count() or 1, progress)
