"""Commands that run a job as tenants of this machine's node: one `cotenant run` for each GPU."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant.cluster.daemon.attempt_record import MARK, End, Order, Record
from cotenant.cluster.daemon.offers import flag_of
from cotenant.cluster.model.cluster import Attempt, JobEnd
from cotenant.cluster.model.event import StartJob
from cotenant.cluster.progress import PROGRESS_VARIABLE
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import NAME_LIMIT
from cotenant.units.instant import Duration
from cotenant.units.text import format_duration, format_size

JOB_VARIABLE: Final = "COTENANT_JOB"
ATTEMPT_VARIABLE: Final = "COTENANT_ATTEMPT"
_HASH_LETTERS: Final = 8
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Launch:
    """Builds orders for supervisors."""

    def __init__(self, arguments: Sequence[str], grace_ns: Duration) -> None:
        """`arguments` say to `cotenant run` which node it is; a program has this grace between request and kill."""
        self._arguments = list(arguments)
        self.grace_ns = grace_ns

    def order(self, start: StartJob, gpus: Sequence[Gpu], record: Record) -> tuple[Order, End | None]:
        """What is to run of this job; and where it cannot run, how it ended before it began."""
        spec = start.spec
        ranks = len(start.gpus)
        names = tuple(tenant_name(start.attempt, rank, ranks) for rank in range(ranks))
        flags = [flag_of(gpus[gpu], gpu) if gpu < len(gpus) else "" for gpu in start.gpus]
        commands = []
        for rank, (name, flag) in enumerate(zip(names, flags, strict=True)):
            # Isolated from the job's directory, where a file may have the name of a module (-P).
            words = [sys.executable, "-P", "-m", "cotenant", "run", *self._arguments, "--offline", "--start-node", "no"]
            words += ["--restart", "no", "--name", name, "--gpu", flag, "--grace", format_duration(self.grace_ns)]
            words += ["--outcome", str(record.rank_file(rank)), "--variables", str(record.variables_file)]
            words += [f"--task={spec.profile or spec.name}"]  # one word: it may begin with a dash
            words += ["--memory", format_size(spec.memory_bytes)] if spec.memory_bytes else []
            commands.append((*words, "--", *spec.command))
        environments = tuple(_environment(start, record, rank) for rank in range(ranks))
        directory = spec.directory or str(Path.home())
        order = Order(
            attempt=start.attempt,
            gpus=start.gpus,
            progress_ppm=start.progress_ppm,
            work_ns=spec.work_ns,
            commands=tuple(commands),
            environment=environments,
            variables={name: value for name, value in spec.environment if name not in (MARK, *environments[0])},
            directory=directory,
            log=os.path.join(directory, f"cotenant-{names[0]}.log"),  # noqa: PTH118  it may be anything
            grace_ns=self.grace_ns,
            tenants=names,
        )
        if not spec.command:
            return order, End(JobEnd.FAILED, "the job has no command")
        if not all(flags):
            return order, End(JobEnd.REFUSED, f"this node has no GPU {start.gpus[flags.index('')]} that it could name")
        return order, None


def tenant_name(attempt: Attempt, rank: int, ranks: int) -> str:
    """What a program is called at the node: the job's name as far as it may be one, and the attempt's number."""
    tail = f"-{attempt.number}" + (f"-{rank}" if ranks > 1 else "")
    plain = _ODD.sub("-", attempt.job)
    room = NAME_LIMIT - len(tail)
    if plain != attempt.job or len(plain) > room:  # two names that differ must not become one
        digest = hashlib.sha256(attempt.job.encode()).hexdigest()[:_HASH_LETTERS]
        plain = f"{plain[: room - _HASH_LETTERS - 1]}-{digest}"
    return plain + tail


def _environment(start: StartJob, record: Record, rank: int) -> dict[str, str]:
    """What a program finds besides what the job wants it to; several find each other as PyTorch's `env://` does."""
    ranks = len(start.gpus)
    found = {JOB_VARIABLE: start.attempt.job, ATTEMPT_VARIABLE: str(start.attempt.number)}
    if rank == 0:  # one speaks for all
        found[PROGRESS_VARIABLE] = str(record.progress_file)
    if ranks > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        found |= {name: str(number) for name, number in numbers.items()}
    return found
