"""What is where in a cluster? Nodes in the order in which they came, and their GPUs side by side in flat arrays.

The order of the arrays is the order of the nodes, also after some left, so that a cluster restored from a snapshot goes
through its GPUs as this one does. What costs anything is done when something changed: a report that says what the last
one said costs a comparison for each GPU.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cotenant.domain.cluster import GpuCondition, GpuReport
from cotenant.domain.instant import Instant
from cotenant.machine.cluster_kinds import GpuKind, gpu_kind

if TYPE_CHECKING:
    from cotenant.machine.cluster_jobs import Job

SMALL_GPUS: Final = 512
"""In a cluster of so many GPUs no two need to be alike, and a round need not wait for its time."""
_KINDS_LIMIT: Final = 16_384
"""Kinds of which there is no GPU any more are forgotten beyond so many."""
_HEALTHY: Final = GpuCondition.HEALTHY


class Node:
    """A node, as far as it was heard of."""

    __slots__ = (
        "attempts",
        "base",
        "busy",
        "epoch",
        "gpus",
        "heard",
        "is_drained",
        "is_silent",
        "name",
        "rank",
        "strays",
    )

    def __init__(self, name: str, epoch: int, gpus: tuple[GpuReport, ...], now: Instant) -> None:
        self.name = name
        self.epoch = epoch
        self.gpus = gpus
        self.heard = now
        self.is_drained = False
        self.is_silent = False
        self.attempts: dict[int, Job] = {}
        """By number: what the cluster wants here, or has not yet heard the end of."""
        self.busy: dict[int, Job] = {}
        """By GPU: whose it is, or for whom it is kept."""
        self.strays: tuple[int, ...] = ()
        """GPUs on which something runs that the cluster does not want there."""
        self.base = 0
        self.rank = 0

    @property
    def takes_jobs(self) -> bool:
        return not (self.is_drained or self.is_silent)


class Floor:
    """All nodes and GPUs."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.ranked: list[Node] = []
        self.kind = array("i")
        self.open = bytearray()
        """Of each GPU, 1 where a job could be started now."""
        self.rank = array("i")
        self.kinds: list[GpuKind] = []
        self.kind_of: dict[GpuKind, int] = {}
        self.counts: list[int] = []
        """GPUs of each kind."""
        self.prices: list[float] = []
        """Of each kind, from the last round; 0 for a kind that has no GPU."""
        self.avoided: dict[str, int] = {}
        """Online tenants that jobs which are not over must not share a GPU with: by how many jobs."""
        self.is_stale = False
        """Who is alike must be found anew, before it counts."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_small(self) -> bool:
        return len(self.kind) <= SMALL_GPUS

    def join(self, node: Node) -> None:
        """A node comes."""
        was_small = self.is_small
        self.nodes[node.name] = node
        node.rank = len(self.ranked)
        node.base = len(self.kind)
        self.ranked.append(node)
        for report in node.gpus:
            self.kind.append(self._enter(report))
            self.rank.append(node.rank)
            self.open.append(0)
        self.refresh(node)
        self.is_stale |= was_small != self.is_small

    def leave(self, nodes: Iterable[Node]) -> None:
        """Nodes go for good."""
        for node in nodes:
            del self.nodes[node.name]
        self._lay_out()

    def tell(self, node: Node, gpus: tuple[GpuReport, ...]) -> bool:
        """What a node says of its GPUs; whether one of them is now open that was not."""
        before, node.gpus = node.gpus, gpus
        if len(before) != len(gpus):
            self._lay_out()
            return True
        opened = False
        for index, report in enumerate(gpus):
            was = before[index]
            if was is not report and was != report:
                opened |= self._tell_one(node, index, report)
        return opened

    def _tell_one(self, node: Node, index: int, report: GpuReport) -> bool:
        place = node.base + index
        kind = gpu_kind(report, self.avoided, exact=self.is_small)
        known = self.kind_of.get(kind)
        was = self.kind[place]
        if known != was:
            self._drop(was)
            self.kind[place] = self._enter_kind(kind)
        was_open = self.open[place]
        is_open = report.condition is _HEALTHY and report.offer_ppm > 0 and self._is_free(node, index)
        self.open[place] = is_open
        return is_open and not was_open

    def refresh(self, node: Node) -> bool:
        """Whoever may be there changed; whether a GPU opened."""
        opened = False
        for index, report in enumerate(node.gpus):
            is_open = report.condition is _HEALTHY and report.offer_ppm > 0 and self._is_free(node, index)
            opened |= is_open and not self.open[node.base + index]
            self.open[node.base + index] = is_open
        return opened

    def avoid(self, names: tuple[str, ...], by: int) -> None:
        """One more job, or one less, avoids these."""
        for name in names:
            left = self.avoided.get(name, 0) + by
            self.is_stale |= left == 0 or (by > 0 and left == by)
            if left:
                self.avoided[name] = left
            else:
                del self.avoided[name]

    def settle(self) -> None:
        """Before kinds count: find anew who is alike, if that changed, and forget kinds that are no more."""
        if self.is_stale:
            self.is_stale = False
            self.forget_prices()
            exact = self.is_small
            for node in self.ranked:
                for index, report in enumerate(node.gpus):
                    kind = gpu_kind(report, self.avoided, exact=exact)
                    if self.kind_of.get(kind) != self.kind[node.base + index]:
                        self._drop(self.kind[node.base + index])
                        self.kind[node.base + index] = self._enter_kind(kind)
        if len(self.kinds) > _KINDS_LIMIT and sum(1 for count in self.counts if count) * 2 < len(self.kinds):
            self._renumber()

    def _is_free(self, node: Node, index: int) -> bool:
        return index not in node.busy and index not in node.strays and node.takes_jobs

    def _enter(self, report: GpuReport) -> int:
        return self._enter_kind(gpu_kind(report, self.avoided, exact=self.is_small))

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
        """All anew: a node left, or has another number of GPUs."""
        nodes = list(self.nodes.values())
        self.nodes, self.ranked = {}, []
        self.kind, self.rank, self.open = array("i"), array("i"), bytearray()
        self.counts = [0] * len(self.kinds)
        self.forget_prices()
        for node in nodes:
            self.join(node)
        self.is_stale = True

    def forget_prices(self) -> None:
        """The next round begins from nothing."""
        self.prices = [0.0] * len(self.kinds)

    def priced(self) -> tuple[tuple[int, float], ...]:
        """The first GPU of each kind that has a price, and that; what is stale has none that counts."""
        if self.is_stale:
            return ()
        first: dict[int, int] = {}
        for place, kind in enumerate(self.kind):
            first.setdefault(kind, place)
        return tuple((place, self.prices[kind]) for kind, place in first.items() if self.prices[kind])
