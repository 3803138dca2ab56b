"""Reader of Muri: trainings of a cluster, and when each ended under each policy on 64 V100.

Source: Rivendile/Muri (Apache-2.0), the trace and the results of the experiments on the real cluster.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, number, table_rows, whole

_TRACE: Final = (
    *("job_id", "num_gpu", "submit_time", "iterations", "model_name", "batch_size", "duration", "interval"),
    *("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "priority"),
)
_RESULT: Final = (
    *("time", "job_id", "num_gpu", "submit_time", "start_time", "end_time", "executed_time", "real_executed_time"),
    *("JCT", "duration", "pending_time", "job_counter", "promote"),
)


class MuriJob(msgspec.Struct, frozen=True):
    """A training of the trace; times in seconds."""

    number: int
    gpus: int
    submitted_s: float
    model: str
    alone_s: float
    """Duration alone: steps times the time of one. The trace's own `duration` differs for some."""
    step_s: float
    phases_s: tuple[float, float, float]
    """Of a step: loading and preparing, computing, synchronizing with other GPUs."""


class MuriEnd(msgspec.Struct, frozen=True):
    """Result of a training on the real cluster; times in seconds."""

    number: int
    ended_s: float
    ran_s: float
    jct_s: float
    starts: int


def read_trace(content: bytes, where: str) -> list[MuriJob]:
    """Return the jobs in the order of arrival."""
    jobs = []
    for location, row in table_rows(content, _TRACE, where):
        job, gpus, submitted, steps, model, _, _, _, step, *phases, _ = row
        step_s = number(step, "iteration_time", location, least=1e-3) / 1000
        times = [number(phase, "resource_time", location, least=0) / 1000 for phase in phases]
        jobs.append(
            MuriJob(
                whole(job, "job_id", location, least=0),
                whole(gpus, "num_gpu", location, least=1, most=64),
                number(submitted, "submit_time", location, least=0) / 1000,
                model,
                step_s * number(steps, "iterations", location, least=1),
                step_s,
                (times[0], times[1], times[2]),
            )
        )
    return sorted(jobs, key=lambda job: (job.submitted_s, job.number))


def read_result(packed: bytes, where: str) -> dict[int, MuriEnd]:
    """Return results by job number."""
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("file", str(error), f"is not a complete gzip file; {REMEDY}", where=where) from None
    ends = {}
    for location, row in table_rows(content, _RESULT, where):
        job = whole(row[1], "job_id", location, least=0)
        ended, ran, jct = (number(row[column], _RESULT[column], location, least=0) for column in (5, 7, 8))
        ends[job] = MuriEnd(job, ended, ran, jct, whole(row[11], "job_counter", location, least=0))
    return ends
