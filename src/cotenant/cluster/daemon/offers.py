"""GPUs that this machine offers to offline jobs, from its node and what online work leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.cluster.model.cluster import ONLINE_LIMIT, GpuCondition, GpuReport, OnlineUse
from cotenant.errors import PeerError, WorldError
from cotenant.gate.activity import GateCounts
from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.model.gpu import SOFT_PREFIX, Gpu
from cotenant.node.model.protection import Health
from cotenant.node.model.tenant import Tenant
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM

_CONDITIONS: Final = {
    Health.INIT: GpuCondition.HEALTHY,
    Health.HEALTHY: GpuCondition.HEALTHY,
    Health.UNHEALTHY: GpuCondition.UNHEALTHY,
    Health.OVERLIMIT: GpuCondition.OVERLIMIT,
    Health.DISABLED: GpuCondition.DISABLED,
}
_STEP_PPM: Final = 50_000
"""Loads are told in such steps: a report that says the same as the last one costs the controller nothing."""
_PLACE: Final = re.compile(r"^(soft:)?[0-9]+ ")
_MODEL: Final = re.compile(r"\b([A-Z]{1,2}[0-9]{1,4}[A-Z]?)\b")
_UNKNOWN_TYPE: Final = "gpu"
_ENOUGH_REQUESTS: Final = 20
"""From so many on it is said what a tenant without a profile does."""


def type_of(name: str) -> str:
    """What jobs call such a GPU: "V100" of "soft:0 Tesla V100-SXM2-16GB"; all of a name that has no such word."""
    plain = _PLACE.sub("", name).strip()
    found = _MODEL.search(plain.upper() if " " not in plain else plain)
    if found is not None:
        return found[1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:64] or _UNKNOWN_TYPE


def flag_of(gpu: Gpu, index: int) -> str:
    """What `cotenant run --gpu` must say to get this one; empty where nothing would."""
    for name in gpu.names(index):
        if name.removeprefix(SOFT_PREFIX).isdigit():
            return name
    return ""


class Offers:
    """Reads the node's tenants and pages; an unchanged GPU is the same object."""

    def __init__(self, read_activity: Callable[[], wire.Activity]) -> None:
        """`read_activity` asks the node for the counters of its gates and ledgers."""
        self._read_activity = read_activity
        self._activity: Sequence[wire.GpuActivity] = ()
        self._counts: dict[tuple[int, int], tuple[GateCounts, Instant]] = {}
        self._latest: tuple[GpuReport, ...] = ()

    def reports(self, roll: wire.TenantList, ours: Collection[str], now: Instant) -> tuple[GpuReport, ...]:
        """Every GPU; `ours` are the names of the tenants that the cluster's own jobs are. `now` is the system's count.

        A GPU with an offline tenant that somebody started by hand offers nothing: the cluster puts one job on a GPU.
        """
        made = []
        try:
            self._activity = self._read_activity().gpus
        except (WorldError, PeerError):
            self._activity = ()
        for index, gpu in enumerate(roll.gpus):
            there = [view.tenant for view in roll.tenants if view.tenant.grant.gpu == index]
            online = [tenant for tenant in there if tenant.grant.kind is Kind.ONLINE]
            others = [tenant for tenant in there if tenant.grant.kind is Kind.OFFLINE and tenant.name not in ours]
            seen = self._look(index, online, now)
            uses = [_use_of(tenant, seen.get(tenant.grant.slot)) for tenant in online[:ONLINE_LIMIT]]
            held_bytes = sum(self._held(index, [*online, *others]))
            report = GpuReport(
                type=type_of(gpu.name),
                memory_bytes=gpu.memory_bytes,
                free_bytes=max(0, gpu.memory_bytes - held_bytes),
                offer_ppm=0 if others else max(0, WHOLE_PPM - _kept_ppm(online, seen)),
                condition=_condition(roll, index),
                online=tuple(uses),
            )
            same = index < len(self._latest) and self._latest[index] == report
            made.append(self._latest[index] if same else report)
        here = {(view.tenant.grant.slot, view.tenant.grant.generation) for view in roll.tenants}
        self._counts = {key: counts for key, counts in self._counts.items() if key in here}
        self._latest = tuple(made)
        return self._latest

    def unattended(self) -> tuple[GpuReport, ...]:
        """While the node is away: the same GPUs, and nobody can be put on them."""
        return tuple(
            msgspec.structs.replace(report, offer_ppm=0, condition=GpuCondition.DISABLED) for report in self._latest
        )

    def _held(self, gpu: int, tenants: Sequence[Tenant]) -> list[int]:
        """What each has of the memory: what it was promised, or what it took where that is more."""
        look = self._activity[gpu].ledger if gpu < len(self._activity) else None
        taken = {} if look is None else look.accounts
        held = []
        for tenant in tenants:
            account = taken.get(tenant.grant.slot)
            is_its = account is not None and account.generation == tenant.grant.generation
            held.append(max(tenant.grant.memory_bytes, account.held_bytes if account is not None and is_its else 0))
        return held

    def _look(self, gpu: int, online: Sequence[Tenant], now: Instant) -> Mapping[int, _TenantObservation]:
        """By slot, what the gate saw of each since the last look."""
        look = self._activity[gpu].gate if online and gpu < len(self._activity) else None
        seen: dict[int, _TenantObservation] = {}
        for tenant in online if look is not None else ():
            assert look is not None
            key = (tenant.grant.slot, tenant.grant.generation)
            counts = look.counts.get(tenant.grant.slot, GateCounts())
            if counts.generation != tenant.grant.generation:
                continue
            before, then = self._counts.get(key, (counts, now))
            self._counts[key] = (counts, now)
            if now > then:
                busy_ns = counts.requests_sum_ns - before.requests_sum_ns
                device_ns = counts.device_ns - before.device_ns
                load_ppm = _steps(busy_ns, now - then) if counts.requests_ended else None
                seen[tenant.grant.slot] = _TenantObservation(load_ppm, _steps(device_ns, now - then), counts)
        return seen


class _TenantObservation(NamedTuple):
    """A tenant between two observations."""

    load_ppm: int | None
    """The part of the time in which requests were under way; None: no request was ever seen."""
    device_ppm: int
    """The part of the time that its work took on the device."""
    counts: GateCounts
    """Since it began."""


def _steps(part_ns: int, whole_ns: int) -> int:
    return min(WHOLE_PPM, round(part_ns * WHOLE_PPM / whole_ns / _STEP_PPM) * _STEP_PPM)


def _use_of(tenant: Tenant, seen: _TenantObservation | None) -> OnlineUse:
    use = tenant.spec.use
    if use is None:
        use = TaskUse() if seen is None else seen_use(seen.counts)
    if seen is not None and seen.load_ppm is not None:
        use = msgspec.structs.replace(use, active_ppm=seen.load_ppm)
    return OnlineUse(tenant.name, use, tenant.grant.slo_ns)


def seen_use(counts: GateCounts) -> TaskUse:
    """What a tenant that nobody profiled does with the device, as far as its requests showed; coarse, so as to last."""
    if counts.requests_ended < _ENOUGH_REQUESTS:
        return TaskUse()
    ended, busy_ns = counts.requests_ended, max(1, counts.requests_sum_ns)
    return TaskUse(
        duty_ppm=max(1, _steps(counts.device_ns, busy_ns)),  # 0 would mean that nobody knows
        kernel_ns=_coarse(counts.device_ns // max(1, counts.launches)),
        round_ns=_coarse(busy_ns // ended),
        round_device_ns=_coarse(counts.device_ns // ended),
    )


def _coarse(amount_ns: int) -> int:
    """The power of two below; 1 for nothing."""
    return 1 << max(0, amount_ns.bit_length() - 1)


def _kept_ppm(online: Sequence[Tenant], seen: Mapping[int, _TenantObservation]) -> int:
    """What online work has: what each was promised, or what it takes now where that is more.

    Not what it keeps from offline work at the gate (roll.dials): while nobody is there that is almost everything.
    """
    taken = [seen[tenant.grant.slot].device_ppm if tenant.grant.slot in seen else 0 for tenant in online]
    return sum(max(tenant.grant.share_ppm, took) for tenant, took in zip(online, taken, strict=True))


def _condition(roll: wire.TenantList, gpu: int) -> GpuCondition:
    return _CONDITIONS[roll.devices[gpu].health] if gpu < len(roll.devices) else GpuCondition.HEALTHY
