"""The driver's own limits of MPS clients, in addition to those of the hook: memory, SMs and scheduling priority.

A client's limits are variables of its environment, which the hook sets before the driver starts. A program can clean
its environment; the node then finds what it uses by NVML. A limit of the server for all clients would have to be raised
before a tenant with a larger quota connects. Where the kernel has the cgroup controller for device memory (`dmem`,
Linux 6.14) and the driver registers its devices with it (CUDA 13.4), the kernel also enforces the quota of a tenant
that has a container of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateRules
from cotenant.node.model.gpu import UUID_PREFIX, Gpu
from cotenant.node.policy.limit.share import offline_percent, share_of
from cotenant.units.share import WHOLE_PPM

MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PERCENTAGE_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PRIORITY_VARIABLE: Final = "CUDA_MPS_CLIENT_PRIORITY"
_LOWER_PRIORITY: Final = "1"
_MIB: Final = 1 << 20
_CAPACITY_FILE: Final = "dmem.capacity"
_MAX_FILE: Final = "dmem.max"


def client_limits(
    grant: Grant, devices: Sequence[tuple[GateRules | None, Gpu]], headroom_ppm: int | None
) -> dict[str, str]:
    """Return the variables that limit the processes of a tenant, from the table and the name of each of its devices.

    With a static limit they get the SMs of the share. If `headroom_ppm` is given, offline ones get the SMs that online
    tenants leave now, except for this margin; a process has one such limit, so the device with the fewest decides.
    """
    limits = {}
    if grant.memory_bytes:
        quota = memory_text(grant.memory_bytes)
        named = (f"{_device_of(device, ordinal)}={quota}" for ordinal, (_, device) in enumerate(devices))
        limits[MEMORY_VARIABLE] = ",".join(named)
    percents = [_percentage(grant, rules or GateRules(), headroom_ppm) for rules, _ in devices]
    limited = [percent for percent in percents if percent is not None]
    if limited:
        limits[PERCENTAGE_VARIABLE] = str(min(limited))
    if grant.kind is Kind.OFFLINE:  # its blocks are scheduled after all others
        limits[PRIORITY_VARIABLE] = _LOWER_PRIORITY
    return limits


def _percentage(grant: Grant, rules: GateRules, headroom_ppm: int | None) -> int | None:
    own = [entry for entry in rules.entries if (entry.slot, entry.generation) == (grant.slot, grant.generation)]
    if own and own[0].static and 0 < own[0].limit_ppm < WHOLE_PPM:
        return -(-own[0].limit_ppm * 100 // WHOLE_PPM)  # rounded up: the gate enforces the exact share
    is_beside_online = any(entry.online for entry in rules.entries)
    if headroom_ppm is None or grant.kind is not Kind.OFFLINE or not is_beside_online:
        return None
    return offline_percent(share_of(rules.delay_ppm), headroom_ppm)


def _device_of(device: Gpu, ordinal: int) -> str:
    """Return the device in the notation of MPS; a program sees only its own devices, in their order."""
    return next((name for name in device.called if name.startswith(UUID_PREFIX)), str(ordinal))


def memory_text(limit_bytes: int) -> str:
    """Return a limit in the notation of MPS, rounded up to whole MiB: the hook enforces the exact quota."""
    return f"{-(-limit_bytes // _MIB)}M"


class DeviceMemoryController:
    """Limits device memory by cgroup, where kernel and driver support it."""

    def __init__(self, cgroups: Path) -> None:
        """Use the unified cgroup hierarchy at this mount point."""
        self._cgroups = cgroups
        self._limits: dict[tuple[str, str], int] = {}

    def region_of(self, bus_id: str) -> str | None:
        """Return the memory region of a device by its PCI address; None if the kernel does not account for it."""
        try:
            lines = (self._cgroups / _CAPACITY_FILE).read_text().splitlines()
        except OSError:
            return None
        address = normal_bus_id(bus_id)
        regions = [line.split()[0] for line in lines if line.split()]
        return next((region for region in regions if address and address in region.split("/")), None)

    def limit(self, cgroup: str, region: str, limit_bytes: int) -> bool:
        """Limit the memory of a cgroup in a region, unless it has this limit; return whether the kernel accepted it."""
        if self._limits.get((cgroup, region)) == limit_bytes:
            return True
        try:
            (self._cgroups / cgroup.lstrip("/") / _MAX_FILE).write_text(f"{region} {limit_bytes}\n")
        except OSError:
            return False
        self._limits[cgroup, region] = limit_bytes
        return True

    def forget(self, cgroups: Iterable[str]) -> None:
        """Keep only these cgroups in mind; a removed cgroup has no limits any more."""
        kept = set(cgroups)
        self._limits = {key: limit for key, limit in self._limits.items() if key[0] in kept}


def normal_bus_id(text: str) -> str:
    """Return a PCI address as the kernel writes it, from that of NVML: "0000:3b:00.0" from "00000000:3B:00.0"."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""
