"""How many GPUs a set of tenants needs, and which of them would share each.

Tenants are packed by the share that they need, and each GPU of the packing is simulated. A GPU whose objectives are not
met loses its last tenant to another one; a service that misses its objective by itself is spread over more GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.profile.estimate.devices import Gpu
from cotenant.simulate.whatif_tenants import WhatIfTenant, fits_memory, share_need
from cotenant.units.estimate import around
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import round_duration

MOST_GPUS: Final = 500
"""Over so many GPUs a service is spread at most."""
_ROUNDS: Final = 8
_LEAST_DOUBT: Final = 0.01

Group = tuple[WhatIfTenant, ...]
Kind = tuple[str, float]
"""A tenant and its part of the requests: copies of one kind need the same."""
Simulate = Callable[[Sequence[Group]], list[bool]]
"""Return for each group whether all its objectives are met when it shares one GPU."""


class OutOfReachError(Exception):
    """No number of GPUs meets an objective; the message says why."""


class Placement(NamedTuple):
    """Number of GPUs with its interval, and the tenants of each."""

    low: int
    point: int
    high: int
    groups: list[list[str]]
    warnings: list[str]


def place(tenants: Sequence[WhatIfTenant], gpu: Gpu, simulate: Simulate) -> Placement:
    """Return the GPUs that meet all objectives; raise `OutOfReachError` if there are none."""
    counts = _counts(tenants, gpu)
    groups = _simulated(tenants, gpu, counts, simulate)
    low, high, warnings = len(groups), len(groups), []
    edge = math.exp(max(tenant.doubt for tenant in tenants))
    try:
        low = min(_packed(tenants, gpu, 1 / edge), low)
        high = max(_packed(tenants, gpu, edge), high)
    except OutOfReachError as error:
        warnings.append(f"at the upper edge of the durations no number of GPUs is enough: {error}")
    return Placement(low, len(groups), high, [[tenant.name for tenant in group] for group in groups], warnings)


def least_at_edge(tenants: Sequence[WhatIfTenant], gpu: Gpu) -> int:
    """Return how many GPUs are needed at the upper edge of the durations; at least 2, because one is not enough."""
    try:
        return max(_packed(tenants, gpu, math.exp(max(tenant.doubt for tenant in tenants))), 2)
    except OutOfReachError:
        return 2


def _packed(tenants: Sequence[WhatIfTenant], gpu: Gpu, factor: float) -> int:
    """Return the number of GPUs by needs alone, with all durations this many times as long."""
    scaled = [_scaled(tenant, factor) for tenant in tenants]
    return len(_pack(scaled, _copies(scaled, _counts(scaled, gpu)), gpu))


def _scaled(tenant: WhatIfTenant, factor: float) -> WhatIfTenant:
    latency_ns = around(tenant.latency_ns.point * factor, _LEAST_DOUBT)
    return msgspec.structs.replace(tenant, latency_ns=latency_ns, device_ns=tenant.device_ns * factor)


def _counts(tenants: Sequence[WhatIfTenant], gpu: Gpu) -> dict[str, int]:
    """Return over how many GPUs the requests of each tenant must be spread at least."""
    for tenant in tenants:
        if not fits_memory([tenant], gpu):
            raise OutOfReachError(
                f"{tenant.name} alone needs {tenant.memory_bytes / 2**30:.1f} GiB of memory, and {gpu.name} has "
                f"{gpu.memory_bytes >> 30} GiB"
            )
    return {tenant.name: _count(tenant) for tenant in tenants}


def _count(tenant: WhatIfTenant) -> int:
    if not tenant.online:
        return 1
    low, high = 0, 1
    while not share_need(tenant, tenant.rate_per_s / high).is_within_reach:
        low, high = high, high * 2
        if high > MOST_GPUS:
            break
    if high > MOST_GPUS:
        high = MOST_GPUS
        if not share_need(tenant, tenant.rate_per_s / high).is_within_reach:
            raise OutOfReachError(_why(tenant))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if share_need(tenant, tenant.rate_per_s / middle).is_within_reach else (middle, high)
    return high


def _why(tenant: WhatIfTenant) -> str:
    alone = f"one request of {tenant.name} takes {round_duration(round(tenant.latency_ns.point))} alone"
    objective = round_duration(tenant.slo_ns)
    if not share_need(tenant, 1e-6).is_within_reach:
        return f"{alone}, which leaves no reserve within its objective of {objective}"
    return f"{alone}, and {tenant.rate_per_s:g} of them per second need more than {MOST_GPUS} GPUs within {objective}"


def _copies(tenants: Sequence[WhatIfTenant], counts: Mapping[str, int]) -> dict[str, Kind]:
    """Return each tenant as often as it is spread, by the name of the copy."""
    return {
        f"{tenant.name}/{number + 1}" if counts[tenant.name] > 1 else tenant.name: (
            tenant.name,
            tenant.rate_per_s / counts[tenant.name],
        )
        for tenant in tenants
        for number in range(counts[tenant.name])
    }


def _simulated(
    tenants: Sequence[WhatIfTenant], gpu: Gpu, counts: dict[str, int], simulate: Simulate
) -> list[list[WhatIfTenant]]:
    """Return groups whose objectives are met in simulated time."""
    is_met: dict[tuple[Kind, ...], bool] = {}
    missed: list[str] = []
    for _ in range(_ROUNDS):
        copies = _copies(tenants, counts)

        def kind(group: Sequence[WhatIfTenant], copies: Mapping[str, Kind] = copies) -> tuple[Kind, ...]:
            return tuple(copies[tenant.name] for tenant in group)

        groups = _pack(tenants, copies, gpu)
        missed = []
        at = 0
        while at < len(groups):
            new = {kind(group): tuple(group) for group in groups if kind(group) not in is_met}
            is_met |= dict(zip(new, simulate(list(new.values())), strict=True))
            at = next((index for index in range(at, len(groups)) if not is_met[kind(groups[index])]), len(groups))
            if at == len(groups):
                break
            if len(groups[at]) > 1:
                groups.append([groups[at].pop()])
            else:
                missed.append(copies[groups[at][0].name][0])
                at += 1
        if not missed:
            return groups
        missed = sorted(set(missed))
        counts |= {name: counts[name] + max(counts[name] // 4, 1) for name in missed}
        if max(counts[name] for name in missed) > MOST_GPUS:
            break
    names = {tenant.name: tenant for tenant in tenants}
    raise OutOfReachError(_why(names[missed[0]]))


def _pack(tenants: Sequence[WhatIfTenant], copies: Mapping[str, Kind], gpu: Gpu) -> list[list[WhatIfTenant]]:
    """Return groups by first fit, the largest share first; offline tenants go where most of the device is left."""
    by_name = {tenant.name: tenant for tenant in tenants}
    each_need = {
        kind: min(share_need(by_name[kind[0]], kind[1]).share.point / WHOLE_PPM, 1.0)
        for kind in dict.fromkeys(copies.values())
        if by_name[kind[0]].online
    }
    needs = {name: each_need[kind] for name, kind in copies.items() if kind in each_need}
    all_copies = [
        msgspec.structs.replace(by_name[base], name=name, rate_per_s=rate) for name, (base, rate) in copies.items()
    ]
    groups: list[list[WhatIfTenant]] = []
    used: list[float] = []
    for tenant in sorted((each for each in all_copies if each.online), key=lambda each: -needs[each.name]):
        need = needs[tenant.name]
        fitting = (
            index
            for index, group in enumerate(groups)
            if used[index] + need <= 1.0 and fits_memory([*group, tenant], gpu)
        )
        index = next(fitting, None)
        if index is None:
            groups.append([tenant])
            used.append(need)
        else:
            groups[index].append(tenant)
            used[index] += need
    for tenant in (each for each in all_copies if not each.online):
        free = [group for group in groups if fits_memory([*group, tenant], gpu)]
        least = min(free, key=lambda group: sum(needs.get(each.name, 0.5) for each in group), default=None)
        if least is None:
            groups.append([tenant])
        else:
            least.append(tenant)
    return groups
