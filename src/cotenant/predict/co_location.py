"""Forecast of the tenants of a device: whether objectives are met, and how much work is done.

Online tenants go first at the gate. The need of one is the part of the device that it must keep to meet its objective;
objectives are met where the needs do not exceed the device. Offline work gets what online work leaves: idle time and
idle SMs within a request are available to it only as far as online work may be slowed. Goodput is the work done within
objectives, 1 for each tenant alone. A tenant of unknown use is assumed to use and to need the whole device all the
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GatePolicy
from cotenant.node.model.tenant import TenantSpec
from cotenant.predict.profile_usage import assumed_use
from cotenant.predict.share_need import Objective, alone_of, latency_ns, need_ppm
from cotenant.predict.sharing_forecast import Sharing, SharingForecast
from cotenant.predict.slowdown import interferences, points_of
from cotenant.predict.usage import TaskUse
from cotenant.units.estimate import Estimate
from cotenant.units.share import WHOLE_PPM

_MAX_NEED: Final = 2.0
"""Upper limit of the need of a tenant whose objective is out of reach, as a multiple of the device."""


def forecast_sharing(tenants: Sequence[TenantSpec], sharing: Sharing) -> SharingForecast:
    """Return the forecast; the order of the tenants does not matter."""
    online = sorted((tenant for tenant in tenants if tenant.kind is Kind.ONLINE), key=_order)
    offline = sorted((tenant for tenant in tenants if tenant.kind is Kind.OFFLINE), key=_order)
    by_online, by_offline = _slowdowns(online, offline, sharing)
    is_open = sharing.policy is GatePolicy.OPEN
    # Behind a gate, each online tenant has the share that it needs; caches and memory are shared all the same.
    slower_requests = by_online if is_open else interferences([tenant.use for tenant in online], is_mps=sharing.is_mps)
    needs = [
        required_share_ppm(tenant, sharing, slower) for tenant, slower in zip(online, slower_requests, strict=True)
    ]
    needs_ppm = sum(need for need in needs if need is not None)
    met_part = min(1.0, WHOLE_PPM / needs_ppm) if needs_ppm else 1.0
    online_work, free_part = 0.0, 1.0
    for tenant, need, slower in zip(online, needs, by_online, strict=True):
        online_work += sharing.kept_ppm / WHOLE_PPM / slower if need is None else met_part
        free_part -= _online_part(tenant.use, min((sharing.kept_ppm if need is None else need) / WHOLE_PPM, 1.0))
    progress = 0.0
    for tenant, slower in zip(offline, by_offline, strict=True):
        progress += (1.0 if is_open else min(1.0, max(free_part, 0.0) / assumed_use(tenant.use).duty)) / slower
    return SharingForecast(needs_ppm, online_work, progress)


def _slowdowns(
    online: Sequence[TenantSpec], offline: Sequence[TenantSpec], sharing: Sharing
) -> tuple[list[float], list[float]]:
    """Return the slowdowns of online and offline tenants.

    With an open gate all tenants slow each other; otherwise only tenants of the same class do, because offline
    tenants use only what online ones leave.
    """
    online_uses, offline_uses = ([tenant.use for tenant in group] for group in (online, offline))
    if sharing.policy is not GatePolicy.OPEN:
        return points_of(online_uses, is_mps=sharing.is_mps), points_of(offline_uses, is_mps=sharing.is_mps)
    slowdowns = points_of([*online_uses, *offline_uses], is_mps=sharing.is_mps)
    return slowdowns[: len(online_uses)], slowdowns[len(online_uses) :]


def required_share_ppm(spec: TenantSpec, sharing: Sharing, slower: float = 1.0) -> int | None:
    """Return the part of the device that a tenant needs for its objective, in millionths; None: it has no objective.

    More than the whole if the objective is out of reach, by the factor by which the latency exceeds it.
    """
    if not spec.slo_ns or spec.kind is Kind.OFFLINE:
        return None
    alone = alone_of(spec.use)
    if alone is None or spec.use is None:
        return WHOLE_PPM
    objective = Objective(sharing.quantile_ppm / WHOLE_PPM, sharing.headroom_ppm / WHOLE_PPM)
    rate = spec.use.per_second
    alone = msgspec.structs.replace(alone, mean_ns=alone.mean_ns * slower, tail_ns=alone.tail_ns * slower)
    need = need_ppm(alone, spec.slo_ns, Estimate(rate, rate, rate), objective)
    if need.is_within_reach:
        return round(need.share.point)
    beyond = latency_ns(alone, 1.0, rate, objective) / max(spec.slo_ns * (1 - objective.headroom), 1.0)
    return round(min(max(beyond, 1.0), _MAX_NEED) * WHOLE_PPM)


def _online_part(use: TaskUse | None, kept: float) -> float:
    """Return the part that online work takes: what its kernels hold, and what it keeps of its own idle time."""
    estimate = assumed_use(use)
    held = estimate.active * estimate.duty * sum(width * part for width, part in estimate.widths)
    return held + (estimate.active - held) * kept


def _order(spec: TenantSpec) -> tuple[str, int, tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return a sort key of all properties that matter, so that the result does not depend on the order of tenants."""
    use = spec.use or TaskUse()
    facts = (use.duty_ppm, use.memory_ppm, use.kernel_ns, use.round_ns, use.active_ppm)
    return spec.kind.value, spec.slo_ns, (int(spec.use is None), *facts), use.widths
