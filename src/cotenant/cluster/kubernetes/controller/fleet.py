"""Nodes with GPUs, as their GpuNode and Node objects describe them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cotenant.cluster.kubernetes.controller.constraints import Constraint, allows
from cotenant.cluster.kubernetes.controller.mapping import gpu_report
from cotenant.cluster.kubernetes.controller.objects import KubeNode
from cotenant.cluster.kubernetes.gpu_node import GpuNode, TenantStatus
from cotenant.cluster.model.cluster import GPUS_LIMIT, GpuCondition, GpuReport
from cotenant.units.instant import Instant

_OFFLINE: Final = "offline"
_UNREPORTED: Final = GpuCondition.UNREPORTED
_POOLS_LIMIT: Final = 1024
"""Pools without waiting pods are dropped beyond this number."""


class NodeRecord:
    """A node. A GPU keeps its position for the life of the record, also while it is not reported."""

    __slots__ = (
        "gpus",
        "is_silent",
        "kept",
        "name",
        "position_of_index",
        "position_of_uuid",
        "reported",
        "tenants",
        "uuids",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.uuids: list[str] = []
        self.position_of_uuid: dict[str, int] = {}
        self.position_of_index: dict[int, int] = {}
        self.reported: tuple[GpuReport, ...] = ()
        """GPUs as last reported."""
        self.gpus: tuple[GpuReport, ...] = ()
        """GPUs as the state machine knows them: without kept memory, and closed while the node is silent."""
        self.tenants: dict[str, TenantStatus] = {}
        """Offline tenants by the uid of their pod."""
        self.is_silent = False
        self.kept: dict[int, int] = {}
        """Memory that is kept for waiting online pods, by position."""

    def update(self, object_: GpuNode) -> None:
        """Take a report."""
        statuses = {status.uuid: status for status in object_.status.gpus}
        for status in sorted(object_.status.gpus, key=lambda status: status.index):
            if status.uuid not in self.position_of_uuid and len(self.uuids) < GPUS_LIMIT:
                self.position_of_uuid[status.uuid] = len(self.uuids)
                self.uuids.append(status.uuid)
        self.position_of_index = {
            status.index: self.position_of_uuid[uuid]
            for uuid, status in statuses.items()
            if uuid in self.position_of_uuid
        }
        gpus: list[GpuReport] = []
        for position, uuid in enumerate(self.uuids):
            found = statuses.get(uuid)
            report = _MISSING if found is None else gpu_report(found)
            is_known = position < len(self.reported) and self.reported[position] == report
            gpus.append(self.reported[position] if is_known else report)
        self.reported = self.reported if _are_same(self.reported, gpus) else tuple(gpus)
        self.tenants = {tenant.pod_uid: tenant for tenant in object_.status.tenants if tenant.kind == _OFFLINE}
        self.set_silent(is_silent=False)

    def set_silent(self, *, is_silent: bool) -> None:
        """Close all GPUs, or open them as reported."""
        self.is_silent = is_silent
        gpus = self.reported
        if self.kept:
            gpus = tuple(_without(gpu, self.kept.get(position, 0)) for position, gpu in enumerate(gpus))
        self.gpus = tuple(_closed(gpu) for gpu in gpus) if is_silent else gpus

    def set_kept(self, kept: dict[int, int]) -> None:
        """Offer less memory to offline pods, by position of the GPU."""
        self.kept = kept
        self.set_silent(is_silent=self.is_silent)

    def positions(self, uuids: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of GPUs; those that the node does not have are omitted."""
        return tuple(sorted(self.position_of_uuid[uuid] for uuid in uuids if uuid in self.position_of_uuid))


_MISSING: Final = GpuReport("unknown", 0, 0, 0, GpuCondition.DISABLED)


def _are_same(old: tuple[GpuReport, ...], new: list[GpuReport]) -> bool:
    return len(old) == len(new) and all(one is other for one, other in zip(old, new, strict=True))


def _without(gpu: GpuReport, kept_bytes: int) -> GpuReport:
    free_bytes = max(0, min(gpu.free_bytes, gpu.memory_bytes - kept_bytes))
    return msgspec.structs.replace(gpu, free_bytes=free_bytes)


def _closed(gpu: GpuReport) -> GpuReport:
    return msgspec.structs.replace(gpu, condition=_UNREPORTED)


class GpuFleet:
    """All nodes, and the pools of nodes that satisfy the constraints of pods."""

    def __init__(self, lease_ns: int) -> None:
        """A node without a report for `lease_ns` is silent."""
        self._lease_ns = lease_ns
        self.nodes: dict[str, NodeRecord] = {}
        self.kube_nodes: dict[str, KubeNode] = {}
        self._heard: OrderedDict[str, Instant] = OrderedDict()
        """Instants of the last reports, the oldest first."""
        self._constraints: dict[str, Constraint] = {}
        self._members: dict[str, set[str]] = {}
        self._changed_pools: set[str] = set()
        self._excluded: dict[tuple[str, str], Instant] = {}
        """Pool and node, with the instant until which the node is left out of the pool."""

    def update(self, object_: GpuNode, now: Instant) -> NodeRecord:
        """Take the report of a node."""
        name = object_.metadata.name
        record = self.nodes.get(name)
        if record is None:
            record = self.nodes[name] = NodeRecord(name)
            self._place_in_pools(name)
        record.update(object_)
        self._heard[name] = now
        self._heard.move_to_end(name)
        return record

    def lose(self, name: str) -> NodeRecord | None:
        """Close the GPUs of a node whose GpuNode was deleted; return its record if that was open."""
        self._heard.pop(name, None)
        record = self.nodes.get(name)
        if record is None or record.is_silent:
            return None
        record.set_silent(is_silent=True)
        return record

    def forget(self, name: str) -> None:
        """Remove a node."""
        del self.nodes[name]
        self._place_in_pools(name)

    def is_lost(self, name: str) -> bool:
        """Return whether there is no GpuNode of this name any more."""
        return name in self.nodes and name not in self._heard

    def silenced(self, now: Instant) -> Iterator[NodeRecord]:
        """Close the GPUs of nodes that are silent since the last call, and return their records."""
        for name, heard in list(self._heard.items()):
            if now < heard + self._lease_ns:
                return
            record = self.nodes[name]
            self._heard[name] = now  # looked at again after another lease
            self._heard.move_to_end(name)
            if not record.is_silent:
                record.set_silent(is_silent=True)
                yield record

    def hostname(self, node: str) -> str:
        """Return the value of the node's hostname label."""
        found = self.kube_nodes.get(node)
        return node if found is None else found.hostname

    def is_closed(self, node: str) -> bool:
        """Return whether the scheduler would put no new pod there: the node is cordoned or not registered."""
        found = self.kube_nodes.get(node)
        return found is None or found.spec.unschedulable

    # -- pools ------------------------------------------------------------------------------------------------------

    def set_kube_node(self, node: KubeNode) -> None:
        """Take a Node object."""
        old = self.kube_nodes.get(node.metadata.name)
        self.kube_nodes[node.metadata.name] = node
        if old is None or (old.metadata.labels, old.spec.taints) != (node.metadata.labels, node.spec.taints):
            self._place_in_pools(node.metadata.name)

    def lose_kube_node(self, name: str) -> None:
        """Take the deletion of a Node object."""
        if self.kube_nodes.pop(name, None) is not None:
            self._place_in_pools(name)

    def pool(self, constraint: Constraint) -> str:
        """Return the pool of a constraint."""
        pool = constraint.pool
        if pool not in self._constraints:
            self._constraints[pool] = constraint
            self._members[pool] = {name for name in self.nodes if self._allows(pool, constraint, name)}
            self._changed_pools.add(pool)
        return pool

    def members(self, pool: str) -> list[str]:
        """Return the nodes of a pool."""
        return sorted(self._members.get(pool, ()))

    def changed_pools(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the pools that changed since the last call, with their nodes."""
        changed, self._changed_pools = self._changed_pools, set()
        return [(pool, tuple(sorted(self._members.get(pool, ())))) for pool in sorted(changed)]

    @property
    def has_many_pools(self) -> bool:
        return len(self._constraints) > _POOLS_LIMIT

    def drop_unused_pools(self, used: set[str]) -> None:
        """Forget pools that no pod names."""
        for pool in sorted(self._constraints.keys() - used):
            del self._constraints[pool], self._members[pool]
            self._changed_pools.add(pool)

    def _place_in_pools(self, name: str) -> None:
        for pool, constraint in self._constraints.items():
            is_member = name in self.nodes and self._allows(pool, constraint, name)
            if is_member != (name in self._members[pool]):
                (self._members[pool].add if is_member else self._members[pool].discard)(name)
                self._changed_pools.add(pool)

    def exclude(self, pool: str, node: str, until: Instant) -> None:
        """Leave a node out of a pool for some time, because the scheduler refused a pod of the pool there."""
        if pool in self._constraints:
            self._excluded[pool, node] = until
            self._place_in_pools(node)

    def end_exclusions(self, now: Instant) -> None:
        """Take nodes whose time is over back into their pools."""
        for (pool, node), until in list(self._excluded.items()):
            if now >= until:
                del self._excluded[pool, node]
                self._place_in_pools(node)

    def _allows(self, pool: str, constraint: Constraint, name: str) -> bool:
        node = self.kube_nodes.get(name)
        return node is not None and (pool, name) not in self._excluded and allows(constraint, node)
