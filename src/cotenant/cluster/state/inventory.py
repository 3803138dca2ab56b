"""Nodes in the order of joining, and their GPUs in flat arrays.

The arrays keep the order of the nodes, also after some left, so that a cluster restored from a snapshot iterates over
its GPUs in the same order. Work is done only on changes: a report without changes costs one comparison per GPU.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from cotenant.cluster.model.cluster import GpuCondition, GpuReport, JobState
from cotenant.cluster.state.kinds import GpuKind, gpu_kind
from cotenant.units.instant import Instant

if TYPE_CHECKING:
    from cotenant.cluster.state.jobs import Job

SMALL_GPUS: Final = 512
"""Up to this many GPUs, a cluster is small: GPUs are grouped by exact memory, and changes trigger early rounds."""
_KINDS_LIMIT: Final = 16_384
"""Number of kinds beyond which kinds without GPUs are removed."""
_HEALTHY: Final = GpuCondition.HEALTHY


class Node:
    """A node, as it last reported."""

    __slots__ = (
        "attempts",
        "base",
        "busy",
        "epoch",
        "gpus",
        "is_drained",
        "is_silent",
        "last_report",
        "most_places",
        "name",
        "pools",
        "rank",
        "strays",
    )

    def __init__(self, name: str, epoch: int, gpus: tuple[GpuReport, ...], now: Instant) -> None:
        self.name = name
        self.epoch = epoch
        self.gpus = gpus
        self.last_report = now
        self.is_drained = False
        self.is_silent = False
        self.attempts: dict[int, Job] = {}
        """By number: attempts that are wanted here, or whose end was not reported yet."""
        self.busy: dict[int, tuple[Job, ...]] = {}
        """By GPU: the jobs to which it is allocated, or for which it is reserved."""
        self.strays: tuple[int, ...] = ()
        """GPUs on which attempts run that are not wanted here."""
        self.most_places = max((gpu.places for gpu in gpus), default=1)
        """Most jobs that could ever share one of its GPUs; jobs stay when their number is reduced."""
        self.pools: tuple[str, ...] = ()
        """Pools to which it belongs, in the order of their names."""
        self.base = 0
        self.rank = 0

    @property
    def takes_jobs(self) -> bool:
        return not (self.is_drained or self.is_silent)

    def hold(self, gpu: int, job: Job) -> None:
        """Allocate a GPU to a job, or reserve it."""
        self.busy[gpu] = (*self.busy.get(gpu, ()), job)

    def release(self, gpu: int, job: Job) -> None:
        """End the allocation or the reservation of a GPU for a job."""
        holders = list(self.busy.pop(gpu))
        holders.remove(job)
        if holders:
            self.busy[gpu] = tuple(holders)

    def is_full(self, gpu: int) -> bool:
        """Return whether the GPU has as many jobs as may share it."""
        return gpu in self.busy and len(self.busy[gpu]) >= self.gpus[gpu].places

    def is_starting(self, gpu: int) -> bool:
        """Return whether a job is being started on the GPU."""
        return any(job.state is JobState.STARTING for job in self.busy.get(gpu, ()))

    def next_report(self, gpu: int) -> GpuReport:
        """Return a GPU as the next job would find it: without the memory of its jobs, with an equal part of its offer.

        A job whose memory is unknown may use all of it.
        """
        report, holders = self.gpus[gpu], self.busy.get(gpu, ())
        if not holders or report.places == 1:
            return report
        held_bytes = sum(job.spec.memory_bytes or report.free_bytes for job in holders)
        free_bytes, offer_ppm = max(0, report.free_bytes - held_bytes), report.offer_ppm // (len(holders) + 1)
        return msgspec.structs.replace(report, free_bytes=free_bytes, offer_ppm=offer_ppm)

    def shared_report(self, gpu: int) -> GpuReport:
        """Return a GPU as each of its jobs finds it: with an equal part of its offer."""
        report, count = self.gpus[gpu], len(self.busy.get(gpu, ()))
        return report if count < 2 else msgspec.structs.replace(report, offer_ppm=report.offer_ppm // count)


class ClusterInventory:
    """All nodes and GPUs."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.ranked: list[Node] = []
        self.kind = array("i")
        self.open = bytearray()
        """For each GPU, 1 if a job could be started there now."""
        self.rank = array("i")
        self.kinds: list[GpuKind] = []
        self.kind_of: dict[GpuKind, int] = {}
        self.counts: list[int] = []
        """Number of GPUs of each kind."""
        self.prices: list[float] = []
        """Price of each kind in the last round; 0 for a kind without GPUs."""
        self.avoided: dict[str, int] = {}
        """Online tenants with which unfinished jobs must not share a GPU, with the number of such jobs."""
        self.pools: dict[str, frozenset[str]] = {}
        """Names of the nodes of each pool; a node that has not joined yet may be among them."""
        self.is_stale = False
        """Whether kinds must be computed anew before they are used."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_small(self) -> bool:
        return len(self.kind) <= SMALL_GPUS

    def join(self, node: Node) -> None:
        """Add a node."""
        was_small = self.is_small
        self.nodes[node.name] = node
        node.pools = self._pools_of(node.name)
        node.rank = len(self.ranked)
        node.base = len(self.kind)
        self.ranked.append(node)
        for index in range(len(node.gpus)):
            self.kind.append(self._enter_kind(self.kind_at(node, index)))
            self.rank.append(node.rank)
            self.open.append(0)
        self.refresh(node)
        self.is_stale |= was_small != self.is_small

    def leave(self, nodes: Iterable[Node]) -> None:
        """Remove nodes."""
        for node in nodes:
            del self.nodes[node.name]
        self._lay_out()

    def update(self, node: Node, gpus: tuple[GpuReport, ...]) -> bool:
        """Take the reported GPUs of a node, and return whether one of them became open."""
        old_gpus, node.gpus = node.gpus, gpus
        if len(old_gpus) != len(gpus):
            node.most_places = max((node.most_places, *(gpu.places for gpu in gpus)))
            self._lay_out()
            return True
        opened = False
        for index, report in enumerate(gpus):
            old = old_gpus[index]
            if old is not report and old != report:
                node.most_places = max(node.most_places, report.places)
                self._set_kind(node, index)
                opened |= self._set_open(node, index)
        return opened

    def refresh(self, node: Node) -> bool:
        """Recompute which GPUs of a node are open, and return whether one became open."""
        opened = False
        for index in range(len(node.gpus)):
            opened |= self.refresh_gpu(node, index)
        return opened

    def refresh_gpu(self, node: Node, index: int) -> bool:
        """Take the jobs that a GPU has now, and return whether it became open."""
        if node.gpus[index].places > 1:  # its kind depends on its jobs
            self._set_kind(node, index)
        return self._set_open(node, index)

    def kind_at(self, node: Node, index: int) -> GpuKind:
        """Return the kind of a GPU, as the next job would find it."""
        report = node.next_report(index)
        jobs = 0 if report is node.gpus[index] else len(node.busy[index])
        return gpu_kind(report, self.avoided, exact=self.is_small, pools=node.pools, jobs=jobs)

    def kind_for_holder(self, node: Node, index: int) -> GpuKind:
        """Return the kind of a GPU, as each of its jobs finds it."""
        return gpu_kind(node.shared_report(index), self.avoided, exact=self.is_small, pools=node.pools)

    def _set_kind(self, node: Node, index: int) -> None:
        position, kind = node.base + index, self.kind_at(node, index)
        if self.kind_of.get(kind) != self.kind[position]:
            self._drop(self.kind[position])
            self.kind[position] = self._enter_kind(kind)

    def _set_open(self, node: Node, index: int) -> bool:
        position = node.base + index
        was_open, is_open = self.open[position], self.is_open(node, index)
        self.open[position] = is_open
        return is_open and not was_open

    @staticmethod
    def is_open(node: Node, index: int) -> bool:
        """Return whether a job could be started on a GPU.

        One job after the other: while one is being started, what it will hold is not settled yet.
        """
        report = node.gpus[index]
        is_offering = report.condition is _HEALTHY and report.offer_ppm > 0
        is_free = not node.is_full(index) and not node.is_starting(index) and index not in node.strays
        return is_offering and is_free and node.takes_jobs

    def avoid(self, names: tuple[str, ...], change: int) -> None:
        """Change by `by` the number of jobs that avoid these tenants."""
        for name in names:
            count = self.avoided.get(name, 0) + change
            self.is_stale |= count == 0 or (change > 0 and count == change)
            if count:
                self.avoided[name] = count
            else:
                del self.avoided[name]

    def set_pool(self, pool: str, nodes: Iterable[str]) -> None:
        """Set the nodes of a pool; a pool without nodes is forgotten."""
        self.pools[pool] = frozenset(nodes)
        if not self.pools[pool]:
            del self.pools[pool]
        for node in self.ranked:
            pools = self._pools_of(node.name)
            if pools != node.pools:
                node.pools, self.is_stale = pools, True

    def _pools_of(self, node: str) -> tuple[str, ...]:
        return tuple(sorted(pool for pool, nodes in self.pools.items() if node in nodes))

    def settle(self) -> None:
        """Recompute kinds if they are stale, and remove kinds without GPUs if there are many."""
        if self.is_stale:
            self.is_stale = False
            self.forget_prices()
            for node in self.ranked:
                for index in range(len(node.gpus)):
                    self._set_kind(node, index)
        if len(self.kinds) > _KINDS_LIMIT and sum(1 for count in self.counts if count) * 2 < len(self.kinds):
            self._renumber()

    def _enter_kind(self, kind: GpuKind) -> int:
        number = self.kind_of.get(kind)
        if number is None:
            number = self.kind_of[kind] = len(self.kinds)
            self.kinds.append(kind)
            self.counts.append(0)
            self.prices.append(0.0)
        self.counts[number] += 1
        return number

    def _drop(self, number: int) -> None:
        self.counts[number] -= 1
        if not self.counts[number]:
            self.prices[number] = 0.0

    def _renumber(self) -> None:
        kinds, counts, prices = self.kinds, self.counts, self.prices
        kept = [number for number, count in enumerate(counts) if count]
        number_of = {old: new for new, old in enumerate(kept)}
        self.kinds = [kinds[old] for old in kept]
        self.counts = [counts[old] for old in kept]
        self.prices = [prices[old] for old in kept]
        self.kind_of = {kind: number for number, kind in enumerate(self.kinds)}
        self.kind = array("i", (number_of[old] for old in self.kind))

    def _lay_out(self) -> None:
        """Rebuild the arrays after a node left or changed its number of GPUs."""
        nodes = list(self.nodes.values())
        self.nodes, self.ranked = {}, []
        self.kind, self.rank, self.open = array("i"), array("i"), bytearray()
        self.counts = [0] * len(self.kinds)
        self.forget_prices()
        for node in nodes:
            self.join(node)
        self.is_stale = True

    def forget_prices(self) -> None:
        """Start the next round without prices."""
        self.prices = [0.0] * len(self.kinds)

    def priced(self) -> tuple[tuple[int, float], ...]:
        """Return the first GPU of each kind with a price, and the price; nothing while kinds are stale."""
        if self.is_stale:
            return ()
        first: dict[int, int] = {}
        for index, kind in enumerate(self.kind):
            first.setdefault(kind, index)
        return tuple((gpu, self.prices[kind]) for kind, gpu in first.items() if self.prices[kind])
