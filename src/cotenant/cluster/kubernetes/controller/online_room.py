"""Makes room for online pods: offline pods are evicted from a GPU that an online pod needs and cannot get.

kube-scheduler does not preempt pods for a claim of capacity, so an online pod would wait until offline work ends by
itself. The room is kept until the online pod is scheduled. The memory of scheduled online pods is kept as well, because
their node reports it only when their program runs: offline pods are placed next to online pods, not in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import Response
from cotenant.cluster.kubernetes.controller.constraints import constraint_of
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher, Operation, Urgency
from cotenant.cluster.kubernetes.controller.fleet import NodeRecord
from cotenant.cluster.kubernetes.controller.manifests import WHOLE_PERCENT, OnlineNeed, create_event, online_need
from cotenant.cluster.kubernetes.controller.objects import DeviceResult, Pod
from cotenant.cluster.kubernetes.controller.starts import Starts
from cotenant.cluster.kubernetes.controller.view import ClusterView
from cotenant.cluster.kubernetes.quantity import whole_quantity
from cotenant.cluster.model.cluster import GpuCondition
from cotenant.errors import ConfigError
from cotenant.units.instant import SECOND_NS, Instant

KEPT_NS: Final = 120 * SECOND_NS
"""Time for which room is kept; it is longer than a pod usually takes to end."""
_USABLE: Final = (GpuCondition.HEALTHY, GpuCondition.UNHEALTHY, GpuCondition.OVERLIMIT)
"""Conditions of GPUs that kube-scheduler gives to online pods."""


class Room(NamedTuple):
    """Room on GPUs of one node for a waiting online pod."""

    node: str
    gpus: tuple[int, ...]
    need: OnlineNeed
    until: Instant


class HeldPart(NamedTuple):
    """What one claim holds of a GPU."""

    uid: str
    memory_bytes: int | None
    """None: unknown, so all of it."""
    share_percent: int
    is_removable: bool
    """Whether it belongs to an offline pod that the controller placed and may evict."""


class _GpuOption(NamedTuple):
    """A GPU that an online pod could use after these offline pods were evicted."""

    evicted: tuple[str, ...]
    position: int


class OnlineRoom:
    """Looks for online pods that kube-scheduler refuses, and evicts offline pods for them."""

    def __init__(self, view: ClusterView, starts: Starts, dispatcher: Dispatcher, wait_ns: int) -> None:
        """Room is made for a pod that was refused for `wait_ns`."""
        self._view, self._starts, self._dispatcher, self._wait_ns = view, starts, dispatcher, wait_ns
        self._refused: dict[str, Instant] = {}
        """Online pods that the scheduler refuses, with the instant of the first refusal."""
        self._rooms: dict[str, Room] = {}
        """By the uid of the online pod."""
        self._claimed: dict[str, tuple[DeviceResult, ...]] = {}
        """Devices of scheduled online pods, by uid."""
        self._changed: set[str] = set()
        """Nodes on which other memory is kept than at the last tick."""

    def claim_changed(self, uid: str, results: Iterable[DeviceResult]) -> None:
        """Take the devices that are allocated to the claim of a pod; none: the claim is gone."""
        pod = self._view.pods.get(uid)
        results = tuple(result for result in results if result.driver == names.DRIVER)
        if pod is None or pod.is_offline:
            results = ()
        before = self._claimed.pop(uid, ())
        if results:
            self._claimed[uid] = results
        if before != results:
            self._changed.update(result.pool for result in (*before, *results))

    def note(self, pod: Pod, now: Instant) -> None:
        """Take a new or changed pod that is not gated."""
        if not pod.is_offline and pod.is_refused:
            self._refused.setdefault(pod.uid, now)
        else:
            self.forget(pod.uid)

    def forget(self, uid: str) -> None:
        """Stop looking at a pod that was scheduled or is gone."""
        self._refused.pop(uid, None)
        if room := self._rooms.pop(uid, None):
            self._changed.add(room.node)

    def tick(self, now: Instant) -> list[NodeRecord]:
        """Evict for pods that have waited long enough; return the nodes whose kept room changed."""
        for uid in [uid for uid, room in self._rooms.items() if now >= room.until]:
            self._changed.add(self._rooms.pop(uid).node)
        due = [uid for uid, since in self._refused.items() if now >= since + self._wait_ns and uid not in self._rooms]
        pods = [self._view.pods[uid] for uid in due if uid in self._view.pods]
        held = self._held() if pods else {}
        for pod in sorted(pods, key=lambda pod: (-pod.spec.priority, pod.metadata.creation_timestamp, pod.uid)):
            if room := self._make_room(pod, held, now):
                self._rooms[pod.uid] = room
                self._changed.add(room.node)
        changed, self._changed = self._changed, set()
        records = [self._view.fleet.nodes[name] for name in sorted(changed) if name in self._view.fleet.nodes]
        for record in records:
            record.set_kept({})
        for node, gpu, memory_bytes in self._kept(set(changed)):
            record = self._view.fleet.nodes[node]
            record.set_kept({**record.kept, gpu: record.kept.get(gpu, 0) + memory_bytes})
        return records

    def _kept(self, nodes: set[str]) -> Iterator[tuple[str, int, int]]:
        """Return node, position and memory for all that is kept on some nodes."""
        for room in self._rooms.values():
            for gpu in room.gpus if room.node in nodes else ():
                yield room.node, gpu, room.need.memory_bytes
        for results in self._claimed.values():
            for result in results:
                if result.pool in nodes and (place := self._place(result)):
                    record, position = place
                    memory_bytes, _ = _consumed(result)
                    yield record.name, position, _whole(memory_bytes or 0, record, position)

    def _place(self, result: DeviceResult) -> tuple[NodeRecord, int] | None:
        """Return the node and the position of an allocated GPU; None: its node did not report it."""
        record, index = self._view.fleet.nodes.get(result.pool), result.device.removeprefix("gpu-")
        if record is None or not index.isdecimal() or int(index) not in record.position_of_index:
            return None
        return record, record.position_of_index[int(index)]

    # -- what is held -----------------------------------------------------------------------------------------------

    def _held(self) -> dict[tuple[str, int], list[HeldPart]]:
        """Return what claims hold, by node and position of the GPU, without pods that are ending."""
        held: dict[tuple[str, int], list[HeldPart]] = {}
        for uid, pod in self._view.pods.items():
            claim = self._view.claim_of(pod)
            allocation = None if claim is None else claim.status.allocation
            if allocation is None or pod.metadata.deletion_timestamp:
                continue
            is_removable = pod.is_offline and uid in self._starts.by_uid
            for result in allocation.devices.results:
                place = self._place(result) if result.driver == names.DRIVER else None
                if place is not None:
                    entry = HeldPart(uid, *_consumed(result), is_removable)
                    held.setdefault((place[0].name, place[1]), []).append(entry)
        return held

    # -- the choice -------------------------------------------------------------------------------------------------

    def _make_room(self, pod: Pod, held: dict[tuple[str, int], list[HeldPart]], now: Instant) -> Room | None:
        """Evict the fewest offline pods that make room; None: that is impossible, or they are not what it waits for."""
        try:
            need = online_need(pod)
        except ConfigError:
            return None  # its claim says what is wrong
        fleet, best = self._view.fleet, None
        for name in fleet.members(fleet.pool(constraint_of(pod))):
            record = fleet.nodes[name]
            if fleet.is_closed(name) or record.is_silent:
                continue
            options = sorted(self._options(record, need, held), key=self._cost)[: need.gpus]
            if len(options) < need.gpus:
                continue
            evicted = tuple(dict.fromkeys(uid for option in options for uid in option.evicted))
            if not evicted:
                return None  # it fits there already: it waits for something else
            choice = (len(evicted), self._highest_priority(evicted), name), record, options, evicted
            best = choice if best is None or choice[0] < best[0] else best
        if best is None:
            return None
        _, record, options, evicted = best
        gpus = tuple(option.position for option in options)
        for uid in evicted:
            self._evict(uid, pod, now)
        for gpu in gpus:  # the next pod of this tick sees what this one gets
            entries = held.setdefault((record.name, gpu), [])
            entries[:] = [entry for entry in entries if entry.uid not in evicted]
            memory_bytes = _whole(need.memory_bytes, record, gpu)
            entries.append(HeldPart(pod.uid, memory_bytes, need.share_percent, is_removable=False))
        need = need._replace(memory_bytes=max(_whole(need.memory_bytes, record, gpu) for gpu in gpus))
        return Room(record.name, gpus, need, now + KEPT_NS)

    def _options(
        self, record: NodeRecord, need: OnlineNeed, held: dict[tuple[str, int], list[HeldPart]]
    ) -> Iterator[_GpuOption]:
        for position, gpu in enumerate(record.reported):
            entries = [*held.get((record.name, position), ()), *self._rooms_on(record.name, position)]
            removable = sorted(
                (entry for entry in entries if entry.is_removable), key=lambda entry: self._order(entry.uid)
            )
            evicted: list[str] = []
            while gpu.condition in _USABLE:
                free_bytes = gpu.memory_bytes - sum(
                    gpu.memory_bytes if entry.memory_bytes is None else entry.memory_bytes for entry in entries
                )
                free_percent = WHOLE_PERCENT - sum(entry.share_percent for entry in entries)
                if free_bytes >= _whole(need.memory_bytes, record, position) and free_percent >= need.share_percent:
                    yield _GpuOption(tuple(evicted), position)
                    break
                if not removable:
                    break
                entries.remove(removable[0])
                evicted.append(removable.pop(0).uid)

    def _rooms_on(self, node: str, position: int) -> Iterator[HeldPart]:
        for uid, room in self._rooms.items():
            if room.node == node and position in room.gpus:
                yield HeldPart(uid, room.need.memory_bytes, room.need.share_percent, is_removable=False)

    def _order(self, uid: str) -> tuple[int, int]:
        """Return what decides which offline pod goes first: the lowest priority, then the latest start."""
        return self._view.pods[uid].spec.priority, -self._starts.by_uid[uid].attempt.number

    def _cost(self, option: _GpuOption) -> tuple[int, int, int]:
        return len(option.evicted), self._highest_priority(option.evicted), option.position

    def _highest_priority(self, uids: Iterable[str]) -> int:
        return max((self._view.pods[uid].spec.priority for uid in uids), default=0)

    def _evict(self, uid: str, online: Pod, now: Instant) -> None:
        pod = self._view.pods[uid]
        self._starts.evict(uid)
        text = f"It is evicted because the online pod {online.key} needs its part of the GPU and found no other."
        event = create_event(pod, reason="EvictedForOnline", message=text, unix_time_ns=now)
        self._dispatcher.submit(Operation(Urgency.REPORT, event, _ignore))


def _consumed(result: DeviceResult) -> tuple[int | None, int]:
    """Return the memory and the share that an allocation holds; memory is None if the API does not say."""
    consumed = result.consumed_capacity
    try:
        memory = whole_quantity(consumed.get(names.CAPACITY_MEMORY), "memory", "")
        return memory, whole_quantity(consumed.get(names.CAPACITY_SHARE, "0"), "share", "")
    except ConfigError:
        return None, 0


def _whole(memory_bytes: int, record: NodeRecord, position: int) -> int:
    """Return the memory that is needed of a GPU: without a number, all."""
    return memory_bytes or record.reported[position].memory_bytes


def _ignore(response: Response) -> None:
    del response
