"""What does this machine offer to offline jobs? What its node says of its GPUs, and what online work leaves of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.cluster import ONLINE_LIMIT, GpuCondition, GpuReport, OnlineUse
from cotenant.domain.gpu import SOFT_PREFIX, WHOLE_PPM, Gpu
from cotenant.domain.instant import Instant
from cotenant.domain.pace import GateCounts
from cotenant.domain.protect import Health
from cotenant.domain.tenant import Kind, Tenant
from cotenant.domain.use import TaskUse
from cotenant.errors import WorldError
from cotenant.format import wire
from cotenant.live import gate, ledger

_CONDITIONS: Final = {
    Health.INIT: GpuCondition.HEALTHY,
    Health.HEALTHY: GpuCondition.HEALTHY,
    Health.UNHEALTHY: GpuCondition.UNHEALTHY,
    Health.OVERLIMIT: GpuCondition.OVERLIMIT,
    Health.DISABLED: GpuCondition.DISABLED,
}
_STEP_PPM: Final = 50_000
"""Loads are told in such steps: a report that says the same as the last one costs the brain nothing."""
_PLACE: Final = re.compile(r"^(soft:)?[0-9]+ ")
_MODEL: Final = re.compile(r"\b([A-Z]{1,2}[0-9]{1,4}[A-Z]?)\b")
_UNKNOWN_TYPE: Final = "gpu"


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
    """Looks at the node's roll and at its pages; what did not change since the last look is the same object."""

    def __init__(self, pages: Path) -> None:
        """The pages of the node's devices are in this directory."""
        self._pages = pages
        self._counts: dict[tuple[int, int], tuple[GateCounts, Instant]] = {}
        self._latest: tuple[GpuReport, ...] = ()

    def reports(self, roll: wire.Tenants, ours: Collection[str], now: Instant) -> tuple[GpuReport, ...]:
        """Every GPU; `ours` are the names of the tenants that the cluster's own jobs are. `now` is the system's count.

        A GPU with an offline tenant that somebody started by hand offers nothing: the cluster puts one job on a GPU.
        """
        made = []
        for index, gpu in enumerate(roll.gpus):
            there = [view.tenant for view in roll.tenants if view.tenant.terms.gpu == index]
            online = [tenant for tenant in there if tenant.terms.kind is Kind.ONLINE]
            others = [tenant for tenant in there if tenant.terms.kind is Kind.OFFLINE and tenant.name not in ours]
            loads = self._loads(index, online, now)
            uses = [_use_of(tenant, loads.get(tenant.terms.slot)) for tenant in online[:ONLINE_LIMIT]]
            held_bytes = sum(self._held(index, [*online, *others]))
            report = GpuReport(
                type=type_of(gpu.name),
                memory_bytes=gpu.memory_bytes,
                free_bytes=max(0, gpu.memory_bytes - held_bytes),
                offer_ppm=0 if others else max(0, WHOLE_PPM - _kept_ppm(roll, index, online)),
                condition=_condition(roll, index),
                online=tuple(uses),
            )
            same = index < len(self._latest) and self._latest[index] == report
            made.append(self._latest[index] if same else report)
        self._latest = tuple(made)
        return self._latest

    def unattended(self) -> tuple[GpuReport, ...]:
        """While the node is away: the same GPUs, and nobody can be put on them."""
        return tuple(
            msgspec.structs.replace(report, offer_ppm=0, condition=GpuCondition.DISABLED) for report in self._latest
        )

    def _held(self, gpu: int, tenants: Sequence[Tenant]) -> list[int]:
        """What each has of the memory: what it was promised, or what it took where that is more."""
        try:
            look = ledger.look_at(self._pages, gpu)
        except WorldError:
            look = None
        taken = {} if look is None else look.accounts
        held = []
        for tenant in tenants:
            account = taken.get(tenant.terms.slot)
            is_its = account is not None and account.generation == tenant.terms.generation
            held.append(max(tenant.terms.memory_bytes, account.held_bytes if account is not None and is_its else 0))
        return held

    def _loads(self, gpu: int, online: Sequence[Tenant], now: Instant) -> Mapping[int, int]:
        """By slot, the part of the time since the last look in which requests were under way."""
        try:
            look = gate.look_at(self._pages, gpu, now) if online else None
        except WorldError:
            look = None
        loads: dict[int, int] = {}
        for tenant in online if look is not None else ():
            assert look is not None
            key = (tenant.terms.slot, tenant.terms.generation)
            counts = look.counts.get(tenant.terms.slot, GateCounts())
            if counts.generation != tenant.terms.generation:
                continue
            before, then = self._counts.get(key, (counts, now))
            if now > then and counts.requests_ended:
                busy_ns = counts.requests_sum_ns - before.requests_sum_ns
                steps = round(busy_ns * WHOLE_PPM / (now - then) / _STEP_PPM)
                loads[tenant.terms.slot] = min(WHOLE_PPM, steps * _STEP_PPM)
            self._counts[key] = (counts, now)
        return loads


def _use_of(tenant: Tenant, load_ppm: int | None) -> OnlineUse:
    use = tenant.spec.use or TaskUse()
    if load_ppm is not None:
        use = msgspec.structs.replace(use, active_ppm=load_ppm)
    return OnlineUse(tenant.name, use, tenant.terms.slo_ns)


def _kept_ppm(roll: wire.Tenants, gpu: int, online: Sequence[Tenant]) -> int:
    """What online work keeps: as its latencies demand where that is adjusted, and at least what it was promised."""
    dialled = [dial.online_ppm for dial in roll.dials if dial.gpu == gpu] if online else []
    return max([sum(tenant.terms.share_ppm for tenant in online), *dialled])


def _condition(roll: wire.Tenants, gpu: int) -> GpuCondition:
    return _CONDITIONS[roll.devices[gpu].health] if gpu < len(roll.devices) else GpuCondition.HEALTHY
