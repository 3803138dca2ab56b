"""The orders in which Muri's six policies give GPUs to jobs, as published.

Shortest remaining time (SRTF) and shortest remaining service, GPUs times time (SRSF), know how long jobs take. Tiresias
uses the service that a job has received: three queues, of up to 3,250, 7,200 and any GPU-seconds, first come first
served in each, running jobs before waiting ones. Themis equalizes how long jobs take relative to their equal share of
the cluster: it computes the fractions of time that minimize the worst such ratio, and then prefers the job with the
fewest turns for its fraction. Muri-S and Muri-L use the order of SRSF and of least service, and interleave up to four
jobs with the same number of GPUs.

Sources: Zhao et al., "Multi-resource interleaving for deep learning training", SIGCOMM 2022, and the authors' published
experiment (Rivendile/Muri, `cluster_exp`), which defines the queue limits, Themis' order of turns, and the choice of
jobs to interleave; none of its code is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cotenant_lab.data.muri import MuriJob

QUEUES: Final = (3250.0, 7200.0)
"""GPU-seconds at which Tiresias moves a job to the next of its three queues."""
GPUS: Final = 64
_FIRST: Final = 1e9
_HALVINGS: Final = 60


class ActiveJob:
    """A submitted job that has not ended."""

    def __init__(self, job: MuriJob) -> None:
        """Create the state of a job that was just submitted."""
        self.job = job
        self.left_s = job.alone_s
        self.had_s = 0.0
        """Time for which it held GPUs, alone or interleaved."""
        self.starts = 0
        self.queue = 0
        self.runs = False
        self.isolated_steps = 0.0
        self.steps_before = 0.0
        self.part_before = 0.0

    @property
    def steps_left(self) -> float:
        """Return the remaining training steps."""
        return self.left_s / self.job.step_s


Order = Callable[[list[ActiveJob], float], list[ActiveJob]]
"""Jobs and the instant -> jobs in the order in which they get GPUs."""


def srtf(jobs: list[ActiveJob], now_s: float) -> list[ActiveJob]:
    del now_s
    return sorted(jobs, key=lambda job: job.left_s)


def srsf(jobs: list[ActiveJob], now_s: float) -> list[ActiveJob]:
    del now_s
    return sorted(jobs, key=lambda job: job.left_s * job.job.gpus)


def least_service(jobs: list[ActiveJob], now_s: float) -> list[ActiveJob]:
    del now_s
    return sorted(jobs, key=lambda job: job.had_s * job.job.gpus)


def tiresias(jobs: list[ActiveJob], now_s: float) -> list[ActiveJob]:
    """Sort by queue; `jobs` are in the order in which they entered their queue."""
    del now_s
    return sorted(jobs, key=lambda job: job.queue)


def themis(jobs: list[ActiveJob], now_s: float) -> list[ActiveJob]:
    """Sort by fraction of time over turns received; jobs without a turn come first."""
    parts = fair_parts(jobs, now_s)
    rank = {
        job.job.number: part * _FIRST if not job.starts else part / job.starts
        for job, part in zip(jobs, parts, strict=True)
    }
    return sorted(jobs, key=lambda job: -rank[job.job.number])


def fair_parts(jobs: Sequence[ActiveJob], now_s: float) -> list[float]:
    """Return fractions of time that minimize the worst ratio of shared to isolated finish, by bisection.

    As in the published experiment, the isolated finish is counted in steps over the equal share of the cluster.
    """
    equal_share = -(-GPUS // len(jobs))
    isolated, elapsed_s = [], []
    for job in jobs:
        part = min(1.0, equal_share / job.job.gpus)
        if job.part_before:
            job.isolated_steps += (job.steps_before - job.steps_left) / job.part_before
        job.steps_before, job.part_before = job.steps_left, part
        isolated.append(job.isolated_steps + job.steps_left / part)
        elapsed_s.append(now_s - job.job.submitted_s)

    def needed(ratio: float) -> list[float] | None:
        """Return the fraction of each job; None: more than all of the time or of the cluster."""
        fractions = []
        for job, steps, since_s in zip(jobs, isolated, elapsed_s, strict=True):
            within_s = ratio * steps - since_s
            part = job.steps_left * job.job.step_s / within_s if within_s > 0 else 2.0
            if part > 1:
                return None
            fractions.append(part)
        return (
            fractions if sum(part * job.job.gpus for part, job in zip(fractions, jobs, strict=True)) <= GPUS else None
        )

    low, high = 0.0, 1.0
    while needed(high) is None:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if needed(middle) is not None else (middle, high)
    fractions = needed(high)
    assert fractions is not None
    return fractions


def demote(jobs: list[ActiveJob]) -> bool:
    """Move jobs that exceeded their queue's service to the end of the next; return whether any moved."""
    demoted = []
    for job in jobs:
        service = job.had_s * job.job.gpus
        queue = sum(service >= limit for limit in QUEUES)
        if job.runs and queue > job.queue:
            job.queue = queue
            demoted.append(job)
    for job in demoted:
        jobs.remove(job)
        jobs.append(job)
    return bool(demoted)


ORDERS: Final[dict[str, Order]] = {
    "SRTF": srtf,
    "SRSF": srsf,
    "Tiresias": tiresias,
    "Themis": themis,
    "Muri-S": srsf,
    "Muri-L": least_service,
}
INTERLEAVED: Final = ("Muri-S", "Muri-L")
