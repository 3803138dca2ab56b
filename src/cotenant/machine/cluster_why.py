"""Why does a job wait, and why does nobody get a GPU? In a sentence each, for people."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Final

import numpy as np

from cotenant.domain.cluster import GpuCondition, JobState
from cotenant.format.quantity import counted
from cotenant.machine.cluster_floor import Node
from cotenant.machine.cluster_jobs import Job
from cotenant.machine.cluster_kinds import GpuKind, JobKind
from cotenant.machine.cluster_state import ClusterState

_TURN: Final = "its turn comes with one of the next rounds"
_KINDS_LIMIT: Final = 64
"""Kinds of jobs that are looked at closely for one answer."""


class Reasons:
    """Of one instant: what is open is looked at once, and jobs that are alike once."""

    def __init__(self, state: ClusterState) -> None:
        """Look at what is open when somebody asks."""
        self._state = state
        self._of_kind: dict[int, str] = {}

    @cached_property
    def _open(self) -> Counter[int]:
        floor = self._state.floor
        return Counter(kind for kind, on in zip(floor.kind, floor.open, strict=True) if on)

    def waits(self, job: Job) -> str:
        """Why this job, which waits, is not started."""
        users, spec = self._state.roster.users, job.spec
        before = f"; before that: {job.why}" if job.why else ""
        if users.left(spec.user) < spec.gpus:
            quota = users.quotas[spec.user].gpus
            if spec.gpus > quota:
                return (
                    f"it wants {counted(spec.gpus, 'GPU')}, more than the whole quota of {spec.user}, {quota}{before}"
                )
            held = counted(users.held.get(spec.user, 0), "GPU")
            return f"{spec.user} holds {held} of a quota of {quota}{before}"
        if job.kind not in self._of_kind:
            if len(self._of_kind) >= _KINDS_LIMIT:
                return _TURN + before
            self._of_kind[job.kind] = self._alike(self._state.roster.kinds[job.kind])
        return self._of_kind[job.kind] + before

    def is_only_its_turn(self, job: Job) -> bool:
        """Whether nothing but others is in its way, after `waits`."""
        return self.waits(job).startswith(_TURN)

    def _alike(self, kind: JobKind) -> str:
        floor = self._state.floor
        if not floor.nodes:
            return "no node has joined"
        if not self._open:
            return f"none of {counted(len(floor), 'GPU')} is open: {self._closed()}"
        limit_ppm = self._state.settings.slowdown_limit_ppm
        against: Counter[str] = Counter()
        fit: list[int] = []
        for number, count in self._open.items():
            wrong = why_not_kind(kind, floor.kinds[number])
            if wrong:
                against[wrong] += count
            else:
                fit.append(number)
        if fit:
            table = self._state.worth.table([kind], [floor.kinds[number] for number in fit], limit_ppm)
            for number, worth in zip(fit, table.worth[0].tolist(), strict=True):
                if worth <= 0:
                    against["would make online work too slow, as foretold"] += self._open[number]
        if sum(against.values()) == self._open.total():
            told = ", ".join(f"{count} {wrong}" for wrong, count in sorted(against.items()))
            return f"none of {counted(self._open.total(), 'open GPU')} will do: {told}"
        if kind.gpus > 1 and not self._has_node_for(kind):
            return f"no node has {kind.gpus} open GPUs that will do"
        return _TURN

    def _has_node_for(self, kind: JobKind) -> bool:
        floor = self._state.floor
        places = np.flatnonzero(np.frombuffer(floor.open, np.uint8)).tolist()
        there = Counter(floor.rank[at] for at in places if not why_not_kind(kind, floor.kinds[floor.kind[at]]))
        return any(count >= kind.gpus for count in there.values())

    def _closed(self) -> str:
        reasons = Counter(
            why_closed(node, gpu) for node in self._state.floor.nodes.values() for gpu in range(len(node.gpus))
        )
        return ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))


def why_not_kind(job: JobKind, gpu: GpuKind) -> str:
    """What of such a GPU is against such a job, said of the GPU."""
    if job.types and gpu.type not in job.types:
        return f"of type {gpu.type}"
    if job.memory_bytes > gpu.free_bytes:
        return "with too little memory free"
    if job.least_ppm > gpu.offer_ppm:
        return "with too small a share on offer"
    if any(name in gpu.named for name in job.avoid):
        return "with an online tenant that it avoids"
    return ""


def why_closed(node: Node, gpu: int) -> str:
    """Why no job can be started there, said of the GPU; nothing: one can."""
    report = node.gpus[gpu]
    if node.is_silent:
        return "of a silent node"
    if gpu in node.busy:
        return "held" if node.busy[gpu].state is not JobState.LOST else "held by a lost job"
    if gpu in node.strays:
        return "with something that must end first"
    if node.is_drained:
        return "of a drained node"
    if report.condition is not GpuCondition.HEALTHY:
        return str(report.condition.value)
    return "" if report.offer_ppm else "without anything on offer"
