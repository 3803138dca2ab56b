"""The status of the GpuNode object: the GPUs, the online work on them, and the tenants of pods."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.cluster.kubernetes.gpu_node import GpuNodeStatus, GpuStatus, OnlineTenant, TenantStatus, Use
from cotenant.cluster.kubernetes.plugin.host_files import PROGRESS
from cotenant.cluster.kubernetes.plugin.node_link import GpuDevice, devices_of
from cotenant.cluster.kubernetes.plugin.rates import TenantRates
from cotenant.cluster.model.cluster import ONLINE_LIMIT, GpuCondition
from cotenant.cluster.progress import PROGRESS_LIMIT_BYTES, decode_progress
from cotenant.gate.activity import GateCounts
from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.model.protection import ExitPhase
from cotenant.node.model.tenant import Tenant, on_device
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import Instant
from cotenant.units.share import WHOLE_PPM

_STEP_PPM: Final = 50_000
"""Loads are reported in such steps: a report that equals the last one is not written."""
_ENOUGH_REQUESTS: Final = 20
"""From this number on, a tenant without a profile is described by its requests."""


class _TenantObservation(NamedTuple):
    """A tenant between two reports."""

    load_ppm: int | None
    """The part of the time in which requests were active; None: no request was ever counted."""
    device_ppm: int
    """The part of the time that its work took on the device."""
    counts: GateCounts
    """Since it began."""


class StatusMaker:
    """Makes reports; loads are measured between two of them."""

    def __init__(
        self, gpus_of_claim: Callable[[str], Sequence[str]], places: int = 1, proc: Path = Path("/proc")
    ) -> None:
        """`gpus_of_claim` returns the uuids of all GPUs of a claim, empty if it has one only.

        `places` is the number of offline tenants that may share a GPU.
        """
        self.allocation = ""
        """How containers get GPUs, once that is decided."""
        self._places = places
        self._gpus_of_claim = gpus_of_claim
        self._proc = proc
        self._counts: dict[tuple[int, int, int], tuple[GateCounts, Instant]] = {}
        self._rates = TenantRates()

    def make(
        self, tenants: wire.TenantList, activity: Sequence[wire.GpuActivity], *, epoch: int, now: Instant
    ) -> GpuNodeStatus:
        """Return the status without the time of observation; `now` is an instant of any clock that does not jump."""
        devices = devices_of(tenants.gpus, tenants.devices)
        present = [view.tenant for view in tenants.tenants]
        status = GpuNodeStatus(epoch=epoch, version=tenants.node_version, allocation=self.allocation)
        status.gpus = [self._gpu(device, present, activity, now) for device in devices]
        status.tenants = [
            self._tenant(tenant, devices, self._rate(tenant, activity, now)) for tenant in present if tenant.spec.pod
        ]
        keys = {_key(tenant) for tenant in present}
        self._rates.keep(keys)
        self._counts = {place: counts for place, counts in self._counts.items() if place[:2] in keys}
        return status

    def _gpu(
        self, device: GpuDevice, tenants: Sequence[Tenant], activity: Sequence[wire.GpuActivity], now: Instant
    ) -> GpuStatus:
        """Return the report of a GPU; with an offline tenant that is in no pod, it offers nothing."""
        present = [on_device(tenant, device.index) for tenant in tenants if device.index in tenant.grant.gpus]
        online = [tenant for tenant in present if tenant.grant.kind is Kind.ONLINE]
        others = [tenant for tenant in present if tenant.grant.kind is Kind.OFFLINE and not tenant.spec.pod]
        measured = activity[device.index] if device.index < len(activity) else None
        observed = self._observe(measured, online, now)
        held_bytes = sum(_held(measured, tenant) for tenant in (*online, *others))
        kept_ppm = sum(
            max(tenant.grant.share_ppm, observed[tenant.grant.slot].device_ppm if tenant.grant.slot in observed else 0)
            for tenant in online
        )
        is_offering = not others and device.condition is not GpuCondition.DISABLED
        return GpuStatus(
            device.uuid,
            device.index,
            device.type,
            device.memory_bytes,
            max(0, device.memory_bytes - held_bytes),
            max(0, WHOLE_PPM - kept_ppm) if is_offering else 0,
            device.condition.value,
            [
                OnlineTenant(
                    tenant.name,
                    tenant.spec.pod_uid,
                    tenant.grant.slo_ns,
                    Use.of(_use_of(tenant, observed.get(tenant.grant.slot))),
                )
                for tenant in online[:ONLINE_LIMIT]
            ],
            self._places,
        )

    def _observe(
        self, measured: wire.GpuActivity | None, online: Sequence[Tenant], now: Instant
    ) -> Mapping[int, _TenantObservation]:
        """Return by slot what the gate counted of each tenant since the last report."""
        gate = None if measured is None else measured.gate
        observed: dict[int, _TenantObservation] = {}
        for tenant in online if gate is not None else ():
            assert gate is not None
            counts = gate.counts.get(tenant.grant.slot, GateCounts())
            if counts.generation != tenant.grant.generation:
                continue
            place = (*_key(tenant), tenant.grant.gpu)
            before, then = self._counts.get(place, (counts, now))
            self._counts[place] = (counts, now)
            if now > then:
                busy_ns = counts.requests_sum_ns - before.requests_sum_ns
                load_ppm = _steps(busy_ns, now - then) if counts.requests_ended else None
                device_ppm = _steps(counts.device_ns - before.device_ns, now - then)
                observed[tenant.grant.slot] = _TenantObservation(load_ppm, device_ppm, counts)
        return observed

    def _rate(self, tenant: Tenant, activity: Sequence[wire.GpuActivity], now: Instant) -> int:
        """Return the speed of an offline tenant relative to its speed alone; 0: unknown."""
        gate = activity[tenant.grant.gpu].gate if 0 <= tenant.grant.gpu < len(activity) else None
        if gate is None or tenant.grant.kind is not Kind.OFFLINE:
            return 0
        counts = gate.counts.get(tenant.grant.slot, GateCounts())
        if counts.generation != tenant.grant.generation:
            return 0
        is_paused = tenant.paused or tenant.lifecycle.phase is not ExitPhase.RUNNING
        return self._rates.observe(_key(tenant), counts, is_paused=is_paused, now=now)

    def _tenant(self, tenant: Tenant, devices: Sequence[GpuDevice], rate_ppm: int) -> TenantStatus:
        pod_uid, _, claim_uid = tenant.spec.pod.partition("/")
        own = [devices[gpu].uuid for gpu in tenant.grant.gpus if gpu < len(devices)]
        return TenantStatus(
            pod_uid,
            claim_uid,
            tenant.name,
            tenant.grant.kind.value,
            list(self._gpus_of_claim(claim_uid) if claim_uid else ()) or own,
            tenant.grant.memory_bytes,
            read_progress(tenant.pid, self._proc),
            rate_ppm,
            state="paused" if tenant.paused else tenant.lifecycle.phase.value,
            reason=tenant.lifecycle.why,
        )


def _key(tenant: Tenant) -> tuple[int, int]:
    return tenant.grant.slot, tenant.grant.generation


def _held(measured: wire.GpuActivity | None, tenant: Tenant) -> int:
    """Return the memory of a tenant: what it reserved, or what it holds where that is more."""
    ledger = None if measured is None else measured.ledger
    account = None if ledger is None else ledger.accounts.get(tenant.grant.slot)
    is_own = account is not None and account.generation == tenant.grant.generation
    return max(tenant.grant.memory_bytes, account.held_bytes if account is not None and is_own else 0)


def _steps(part_ns: int, whole_ns: int) -> int:
    return max(0, min(WHOLE_PPM, round(part_ns * WHOLE_PPM / whole_ns / _STEP_PPM) * _STEP_PPM))


def _use_of(tenant: Tenant, observed: _TenantObservation | None) -> TaskUse:
    use = tenant.spec.use
    if use is None:
        use = TaskUse() if observed is None else _use_by_requests(observed.counts)
    if observed is not None and observed.load_ppm is not None:
        use = msgspec.structs.replace(use, active_ppm=observed.load_ppm)
    return use


def _use_by_requests(counts: GateCounts) -> TaskUse:
    """Return the use of a tenant without a profile, as its requests show it; coarse, so that it changes rarely."""
    if counts.requests_ended < _ENOUGH_REQUESTS:
        return TaskUse()
    ended, busy_ns = counts.requests_ended, max(1, counts.requests_sum_ns)
    return TaskUse(
        duty_ppm=max(1, _steps(counts.device_ns, busy_ns)),  # 0 would mean that it is unknown
        kernel_ns=_coarse(counts.device_ns // max(1, counts.launches)),
        round_ns=_coarse(busy_ns // ended),
        round_device_ns=_coarse(counts.device_ns // ended),
    )


def _coarse(amount_ns: int) -> int:
    """Return the largest power of two that is not above the amount; 1 for nothing."""
    return 1 << max(0, amount_ns.bit_length() - 1)


def read_progress(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the progress that a program reports in its container, in millionths; 0: unknown.

    The container controls the path: no link is followed, and nothing but a regular file is read.
    """
    if pid <= 0:
        return 0
    *parents, name = PROGRESS.strip("/").split("/")
    descriptors: list[int] = []
    with contextlib.suppress(OSError):
        try:
            descriptors.append(os.open(proc / str(pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            for parent in parents:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptors.append(os.open(parent, flags, dir_fd=descriptors[-1]))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptors.append(os.open(name, flags, dir_fd=descriptors[-1]))
            if stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):
                progress = decode_progress(os.read(descriptors[-1], PROGRESS_LIMIT_BYTES))
                return 0 if progress is None else progress.ppm
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    return 0


def unattended(status: GpuNodeStatus) -> GpuNodeStatus:
    """Return the report while the node daemon does not answer: the same GPUs, on which nothing can be placed."""
    gpus = [msgspec.structs.replace(gpu, offer_ppm=0, condition=GpuCondition.DISABLED.value) for gpu in status.gpus]
    return msgspec.structs.replace(status, gpus=gpus)


def condition(*, is_ready: bool, reason: str, message: str, since: str) -> dict[str, Any]:
    """Return the condition Ready of the status, in the notation of Kubernetes."""
    status = "True" if is_ready else "False"
    return {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
