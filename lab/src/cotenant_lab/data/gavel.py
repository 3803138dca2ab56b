"""Reader of Gavel: speed of training jobs alone, and together with another one on the same GPU.

Source: stanford-futuredata/gavel (MIT). Rows of zeros were not measured; jobs of several GPUs and the sets called
unconsolidated, which repeat others, are omitted.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, number, table_rows

_JOBS: Final = ("gpu", "job_a", "job_b")
_STEPS: Final = ("solo_a_steps_s", "solo_b_steps_s", "coloc_a", "coloc_b", "norm_a", "norm_b")


class TrainingPair(msgspec.Struct, frozen=True):
    """Two jobs on one GPU, and the slowdown of each."""

    gpu: str
    jobs: tuple[str, str]
    slowdowns: tuple[float, float]


class TrainingPairs(msgspec.Struct, frozen=True):
    """Seconds per step alone by GPU and job, and the pairs in the order of the file."""

    step_s: dict[tuple[str, str], float]
    pairs: list[TrainingPair]


def read_pairs(packed: bytes, where: str) -> TrainingPairs:
    """Return everything that was measured on one GPU."""
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("file", str(error), f"is not a complete gzip file; {REMEDY}", where=where) from None
    step_s: dict[tuple[str, str], float] = {}
    pairs = []
    for location, (gpu, first, second, *rest) in table_rows(content, _JOBS + _STEPS, where):
        alone_a, alone_b, together_a, together_b = (number(text, "steps", location, least=0) for text in rest[:4])
        jobs = (_job(first), _job(second))
        if "unconsolidated" in gpu or not all(jobs):
            continue
        for job, alone in zip(jobs, (alone_a, alone_b), strict=True):
            if alone > 0:
                step_s[gpu, job] = 1 / alone
        if min(alone_a, alone_b, together_a, together_b) > 0:
            pairs.append(TrainingPair(gpu, jobs, (alone_a / together_a, alone_b / together_b)))
    return TrainingPairs(step_s, pairs)


def read_oracle(packed: bytes, where: str) -> TrainingPairs:
    """Return the pairs of Gavel's other file (oracle_throughputs.json), which was measured separately."""
    try:
        raw = msgspec.json.decode(gzip.decompress(packed), type=dict[str, dict[str, dict[str, float | list[float]]]])
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise ConfigError("file", str(error), f"is not the JSON that was published; {REMEDY}", where=where) from None
    step_s: dict[tuple[str, str], float] = {}
    pairs = []
    for gpu, jobs in raw.items():
        alone = {job: _speed(speeds.get("null", 0.0)) for job, speeds in jobs.items()}
        step_s |= {(gpu, job): 1 / speed for job, speed in alone.items() if speed > 0}
        for job, speeds in jobs.items():
            for co_runner, together in speeds.items():
                if (
                    isinstance(together, list)
                    and len(together) == 2
                    and min(*together, alone[job], alone.get(co_runner, 0.0)) > 0
                ):
                    pairs.append(
                        TrainingPair(gpu, (job, co_runner), (alone[job] / together[0], alone[co_runner] / together[1]))
                    )
    return TrainingPairs(step_s, pairs)


def _speed(value: float | list[float]) -> float:
    return value if isinstance(value, float | int) else 0.0


def _job(text: str) -> str:
    """Return the name of a single-GPU job; empty: it has more GPUs."""
    name, _, gpus = text.strip("()").rpartition(",")
    return name.strip().strip("'") if gpus.strip() == "1" else ""
