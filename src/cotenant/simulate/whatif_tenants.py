"""Tenants of a what-if question: their kernel streams, loads, and how their latency depends on their share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.predict.share_need import AloneLatency, Need, need_ppm
from cotenant.profile.estimate.devices import Gpu, part_of
from cotenant.profile.estimate.duration import kernel_time
from cotenant.profile.estimate.stream import EstimatedStream, StreamOptions, latency_of
from cotenant.simulate.sharing import Guest
from cotenant.units.estimate import Estimate, around
from cotenant.units.instant import SECOND_NS
from cotenant.workload.arrivals import draw_instants
from cotenant.workload.load import TRAINING, Launch, Workload, at_instants
from cotenant.workload.rates import constant_rate

_SHARES: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_TAIL: Final = 1.1
"""p99 over mean of a request alone, without queueing: hosts jitter."""
_ONLINE_PRIORITY: Final = 1
_OFFLINE_PRIORITY: Final = 7
_MEASURED_DOUBT: Final = 0.05
_LEAST_REQUESTS: Final = 60
"""Requests that a simulated run should contain at least, so that its longest latencies are found."""
_RAISED_LOAD: Final = 0.05
"""Part of the time in which a service computes at most, after its rate was raised to contain enough requests."""
_RATE_DOUBT: Final = 0.05


class WhatIfTenant(msgspec.Struct, frozen=True, kw_only=True):
    """One model or measured program that would use the GPU."""

    name: str
    source: str
    online: bool
    launches: tuple[Launch, ...]
    latency_ns: Estimate
    device_ns: float
    memory_bytes: int = 0
    batch: int = 1
    rate_per_s: float = 0.0
    slo_ns: int = 0
    graph: bool = False
    measured: bool = False
    curve: tuple[tuple[float, float], ...] = ()
    """Share of the SMs, and latency relative to the whole device."""
    remarks: tuple[str, ...] = ()
    """What a user must know of the estimate of this tenant, in sentences."""

    @property
    def doubt(self) -> float:
        """Return how far its durations may be off, as a logarithm at the edge of the interval."""
        return math.log(self.latency_ns.high / self.latency_ns.point)

    @property
    def busy(self) -> float:
        """Return the part of a request in which the device runs its kernels."""
        return min(self.device_ns / max(self.latency_ns.point, 1.0), 1.0)

    @property
    def steps_per_s(self) -> float:
        """Return requests or training steps per second, one after the other, alone on the device."""
        return 1e9 / max(self.latency_ns.point, 1.0)


def tenant_of_stream(
    stream: EstimatedStream, launches: tuple[Launch, ...], source: str, *, rate_per_s: float, slo_ns: int, online: bool
) -> WhatIfTenant:
    """Return the tenant of an estimated stream."""
    return WhatIfTenant(
        name=f"{stream.name}:b{stream.batch}{':train' if stream.options.train else ''}",
        source=source,
        online=online,
        launches=launches,
        latency_ns=stream.latency_ns,
        device_ns=stream.device_ns.point,
        memory_bytes=stream.memory_bytes,
        batch=stream.batch,
        rate_per_s=rate_per_s,
        slo_ns=slo_ns,
        graph=stream.options.graph,
        curve=share_curve(stream),
        remarks=tuple(stream.remarks),
    )


def tenant_of_launches(
    name: str, source: str, launches: tuple[Launch, ...], *, rate_per_s: float, slo_ns: int, online: bool
) -> WhatIfTenant:
    """Return the tenant of measured launches: there is no model to doubt, only the spread of the measurement."""
    device = [float(launch.device_ns) for launch in launches]
    host = [0.0, *(float(launch.interval_ns) for launch in launches[:-1])]
    latency_ns = latency_of(device, host, StreamOptions())
    return WhatIfTenant(
        name=name,
        source=source,
        online=online,
        launches=launches,
        latency_ns=around(latency_ns, _MEASURED_DOUBT),
        device_ns=sum(device),
        rate_per_s=rate_per_s,
        slo_ns=slo_ns,
        measured=True,
        remarks=("the memory that it needs is not part of a measured profile, and counts as 0",),
    )


def share_curve(stream: EstimatedStream) -> tuple[tuple[float, float], ...]:
    """Return the latency by share of the SMs, relative to the whole device."""
    points = []
    for share in _SHARES:
        part = part_of(stream.gpu, max(round(stream.gpu.sms * share), 1))
        device = [kernel_time(kernel.work, part, correction=stream.correction).device_ns for kernel in stream.kernels]
        points.append((share, latency_of(device, stream.host_ns, stream.options)))
    whole = points[-1][1] or 1.0
    return tuple((share, max(latency / whole, 1.0)) for share, latency in points)


def share_need(tenant: WhatIfTenant, rate_per_s: float | None = None) -> Need:
    """Return the smallest share at which an online tenant meets its objective."""
    mean_ns = tenant.latency_ns.point
    alone = AloneLatency(mean_ns, mean_ns * _TAIL, max(tenant.doubt, 0.01), tenant.busy, tenant.curve)
    rate = tenant.rate_per_s if rate_per_s is None else rate_per_s
    return need_ppm(alone, tenant.slo_ns, around(rate, _RATE_DOUBT))


def simulated_rate(tenant: WhatIfTenant, for_ns: int) -> float:
    """Return the rate in a simulated run: a rare service gets more requests, as long as it hardly queues by itself."""
    enough = _LEAST_REQUESTS * SECOND_NS / for_ns
    return max(tenant.rate_per_s, min(enough, _RAISED_LOAD * SECOND_NS / max(tenant.latency_ns.point, 1.0)))


def overload(tenants: Sequence[WhatIfTenant], scale: float = 1.0) -> str:
    """Return why queues of services on one GPU grow without end, with durations this many times as long; or nothing."""
    online = [tenant for tenant in tenants if tenant.online]
    for tenant in online:
        own = tenant.rate_per_s * tenant.latency_ns.point * scale / SECOND_NS
        if own >= 1:
            return f"{tenant.name}: its requests alone take {own:.0%} of the time, so that its queue grows without end"
    device = sum(tenant.rate_per_s * tenant.device_ns for tenant in online) * scale / SECOND_NS
    if device >= 1:
        return f"the online tenants take {device:.0%} of the device's time, so that their queues grow without end"
    return ""


def guest_of(tenant: WhatIfTenant, for_ns: int, seed: int, scale: float) -> Guest:
    """Return the tenant on a simulated device, with its durations scaled by a factor."""
    launches = tenant.launches
    if scale != 1.0:
        launches = tuple(
            msgspec.structs.replace(launch, device_ns=max(round(launch.device_ns * scale), 1)) for launch in launches
        )
    if not tenant.online:
        load = Workload(tenant.name, launches, TRAINING, 1, tenant.graph)
        return Guest(load=load, online=False, priority=_OFFLINE_PRIORITY)
    instants = draw_instants(constant_rate(simulated_rate(tenant, for_ns)), for_ns, seed)
    load = Workload(tenant.name, launches, at_instants(instants), len(instants), tenant.graph)
    return Guest(load=load, online=True, priority=_ONLINE_PRIORITY, slo_ns=tenant.slo_ns)


def fits_memory(tenants: list[WhatIfTenant], gpu: Gpu) -> bool:
    """Return whether the estimated memory of all tenants is available."""
    return sum(tenant.memory_bytes for tenant in tenants) <= gpu.memory_bytes
