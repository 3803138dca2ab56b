"""Reasons why a job waits and why a GPU is idle, as sentences for people."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Final

import numpy as np

from cotenant.cluster.model.cluster import GpuCondition, JobState
from cotenant.cluster.state.attempts import ClusterState
from cotenant.cluster.state.gangs import gang_needs, missing_members
from cotenant.cluster.state.inventory import Node
from cotenant.cluster.state.jobs import Job
from cotenant.cluster.state.kinds import GpuKind, JobKind
from cotenant.units.text import counted

_TURN: Final = "it waits for one of the next rounds"
_KINDS_LIMIT: Final = 64
"""Kinds of jobs that are analysed for one answer."""


class Reasons:
    """Reasons at one instant; open GPUs and kinds of jobs are each analysed once."""

    def __init__(self, state: ClusterState) -> None:
        """Bind to the state; analysis happens on demand."""
        self._state = state
        self._of_kind: dict[int, str] = {}

    @cached_property
    def _open(self) -> Counter[int]:
        inventory = self._state.inventory
        return Counter(kind for kind, on in zip(inventory.kind, inventory.open, strict=True) if on)

    def why_waiting(self, job: Job) -> str:
        """Return why a waiting job is not started."""
        spec = job.spec
        previous = f"; before that: {job.why}" if job.why else ""
        if spec.gang and (missing := missing_members(self._state.job_table, spec.gang)):
            return missing + previous
        if job.kind not in self._of_kind:
            if len(self._of_kind) >= _KINDS_LIMIT:
                return _TURN + previous
            self._of_kind[job.kind] = self._why_not_kinds(self._state.job_table.kinds[job.kind])
        if spec.gang and self._of_kind[job.kind] == _TURN:
            return gang_needs(self._state.job_table, spec.gang) + previous
        return self._of_kind[job.kind] + previous

    def is_only_its_turn(self, job: Job) -> bool:
        """Return whether only other jobs are before it in the queue."""
        return self.why_waiting(job).startswith(_TURN)

    def _why_not_kinds(self, kind: JobKind) -> str:
        inventory = self._state.inventory
        if not inventory.nodes:
            return "no node has joined"
        if not self._open:
            return f"none of {counted(len(inventory), 'GPU')} is open: {self._closed()}"
        limit_ppm = self._state.settings.slowdown_limit_ppm
        against: Counter[str] = Counter()
        fit: list[int] = []
        for number, count in self._open.items():
            reason = why_not_kind(kind, inventory.kinds[number])
            if reason:
                against[reason] += count
            else:
                fit.append(number)
        if fit:
            table = self._state.pair_weights.table([kind], [inventory.kinds[number] for number in fit], limit_ppm)
            for number, weight in zip(fit, table.weight[0].tolist(), strict=True):
                if weight <= 0:
                    against["would make online work too slow, as predicted"] += self._open[number]
        if sum(against.values()) == self._open.total():
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(against.items()))
            return f"none of {counted(self._open.total(), 'open GPU')} is suitable: {reasons}"
        if kind.gpus > 1 and not self._has_node_for(kind):
            return f"no node has {kind.gpus} suitable open GPUs"
        return _TURN

    def _has_node_for(self, kind: JobKind) -> bool:
        inventory = self._state.inventory
        open_gpus = np.flatnonzero(np.frombuffer(inventory.open, np.uint8)).tolist()
        per_node = Counter(
            inventory.rank[gpu] for gpu in open_gpus if not why_not_kind(kind, inventory.kinds[inventory.kind[gpu]])
        )
        return any(count >= kind.gpus for count in per_node.values())

    def _closed(self) -> str:
        reasons = Counter(
            why_closed(node, gpu) for node in self._state.inventory.nodes.values() for gpu in range(len(node.gpus))
        )
        return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))


def why_not_kind(job: JobKind, gpu: GpuKind) -> str:
    """Return why such a GPU does not suit such a job, as a property of the GPU; empty: it does."""
    if job.types and gpu.type not in job.types:
        return f"of type {gpu.type}"
    if job.memory_bytes > gpu.free_bytes:
        return "with too little memory free"
    if gpu.jobs and not job.memory_bytes:
        return "with offline jobs, and it does not say how much memory it needs"
    if job.min_share_ppm > gpu.offer_ppm:
        return "with too small a share on offer"
    if job.pool and job.pool not in gpu.pools:
        return "on nodes that its node selector, affinity or tolerations exclude"
    if any(name in gpu.named for name in job.avoid):
        return "with an online tenant that it avoids"
    return ""


def why_closed(node: Node, gpu: int) -> str:
    """Return why no job can be started on the GPU; empty: one can."""
    report = node.gpus[gpu]
    if node.is_silent:
        return "of a silent node"
    if node.is_full(gpu):
        is_lost = any(job.state is JobState.LOST for job in node.busy[gpu])
        return "held by a lost job" if is_lost else "held"
    if node.is_starting(gpu):
        return "on which another job is being started"
    if gpu in node.strays:
        return "with an unwanted attempt that must end first"
    if node.is_drained:
        return "of a drained node"
    if report.condition is not GpuCondition.HEALTHY:
        return str(report.condition.value)
    return "" if report.offer_ppm else "without an offer"
