"""How would everybody on a device fare: are objectives kept, and how much is done?

Online tenants come first at the gate. What one must keep of the device for its objective is its need; objectives are
kept where needs do not exceed the whole. Of what online work leaves, offline work gets the more, the less of the
device online must keep while it is active: idle moments and idle SMs within a request are offline's only as far as
online may be slowed. What is done within objectives, each tenant counted as 1 alone, is goodput. A tenant of whom
nothing is known is taken to use, and to need, all of the device all of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.estimate import Estimate
from cotenant.domain.foretold import Foretold, Sharing
from cotenant.domain.gate import GatePolicy
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.domain.use import TaskUse
from cotenant.policy.predict.need import Wants, alone_of, latency_ns, need_ppm
from cotenant.policy.predict.slowdown import MPS, SLICES, points_of
from cotenant.policy.predict.use import assumed

_MOST_BEYOND: Final = 2.0
"""Of two objectives that are beyond reach, neither makes a device look better than this."""


def foretell(tenants: Sequence[TenantSpec], sharing: Sharing) -> Foretold:
    """How they would fare together, in whatever order they are named."""
    online = sorted((one for one in tenants if one.kind is Kind.ONLINE), key=_order)
    offline = sorted((one for one in tenants if one.kind is Kind.OFFLINE), key=_order)
    by_online, by_offline = _slowed(online, offline, sharing)
    is_open = sharing.policy is GatePolicy.OPEN
    needs = [need_of(one, sharing, slower if is_open else 1.0) for one, slower in zip(online, by_online, strict=True)]
    needs_ppm = sum(need for need in needs if need is not None)
    within = min(1.0, WHOLE_PPM / needs_ppm) if needs_ppm else 1.0
    done, left = 0.0, 1.0
    for one, need, slower in zip(online, needs, by_online, strict=True):
        done += sharing.kept_ppm / WHOLE_PPM / slower if need is None else within
        left -= _taken(one.use, min((sharing.kept_ppm if need is None else need) / WHOLE_PPM, 1.0))
    progress = 0.0
    for one, slower in zip(offline, by_offline, strict=True):
        progress += (1.0 if is_open else min(1.0, max(left, 0.0) / assumed(one.use).duty)) / slower
    return Foretold(needs_ppm, done, progress)


def _slowed(
    online: Sequence[TenantSpec], offline: Sequence[TenantSpec], sharing: Sharing
) -> tuple[list[float], list[float]]:
    """By everybody where the gate is open; else by equals alone, for those below only have what is left."""
    law = MPS if sharing.is_mps else SLICES
    first, rest = ([assumed(one.use) for one in some] for some in (online, offline))
    if sharing.policy is not GatePolicy.OPEN:
        return points_of(first, law), points_of(rest, law)
    all_of_them = points_of([*first, *rest], law)
    return all_of_them[: len(first)], all_of_them[len(first) :]


def need_of(spec: TenantSpec, sharing: Sharing, slower: float = 1.0) -> int | None:
    """What a tenant must keep of a device for its objective, in millionths; None: it has none.

    Beyond reach even with the whole: more than that, by as much as its latency is beyond the objective.
    """
    if not spec.slo_ns or spec.kind is Kind.OFFLINE:
        return None
    alone = alone_of(spec.use)
    if alone is None or spec.use is None:
        return WHOLE_PPM
    wants = Wants(sharing.quantile_ppm / WHOLE_PPM, sharing.headroom_ppm / WHOLE_PPM)
    rate = spec.use.per_second
    alone = msgspec.structs.replace(alone, mean_ns=alone.mean_ns * slower, tail_ns=alone.tail_ns * slower)
    need = need_ppm(alone, spec.slo_ns, Estimate(rate, rate, rate), wants)
    if need.is_within_reach:
        return round(need.share.point)
    beyond = latency_ns(alone, 1.0, rate, wants) / max(spec.slo_ns * (1 - wants.headroom), 1.0)
    return round(min(max(beyond, 1.0), _MOST_BEYOND) * WHOLE_PPM)


def _taken(use: TaskUse | None, kept: float) -> float:
    """What online work takes from offline: what its kernels hold, and of its own idle moments the part it keeps."""
    known = assumed(use)
    held = known.active * known.duty * sum(width * part for width, part in known.widths)
    return held + (known.active - held) * kept


def _order(spec: TenantSpec) -> tuple[str, int, tuple[int, ...], tuple[tuple[int, int], ...]]:
    """By what the answer depends on, so that equal tenants in any order give the same answer to the last bit."""
    use = spec.use or TaskUse()
    facts = (use.duty_ppm, use.memory_ppm, use.kernel_ns, use.round_ns, use.active_ppm)
    return spec.kind.value, spec.slo_ns, (int(spec.use is None), *facts), use.widths
