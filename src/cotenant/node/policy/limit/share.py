"""Meaning of an online share at the gate, and its division among peers of one priority.

Online work with a share N of its device takes 1/N as long as alone, on average: it loses (1 - N) / N of its time to
lower-priority tenants, and the gate's delay budget bounds that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cotenant.units.share import WHOLE_PPM

MIN_ONLINE_PPM: Final = 10_000
"""The smallest online share: (1 - N) / N is unbounded."""
ALL_SMS_PPM: Final = 100_000
"""The online share at which offline work may use all SMs next to online work, and need not ask the gate."""
MIN_SMS_PPM: Final = 10_000
"""The smallest part of the SMs that is stated; a device rounds it to what it can limit."""

MIN_OFFLINE_PERCENT: Final = 10


def delay_of(online_ppm: int) -> int:
    """Return the delay budget of an online share, in ppm; above 1,000,000 for shares below one half."""
    kept_ppm = min(max(online_ppm, MIN_ONLINE_PPM), WHOLE_PPM)
    return ((WHOLE_PPM - kept_ppm) * WHOLE_PPM + kept_ppm // 2) // kept_ppm


def share_of(delay_ppm: int) -> int:
    """Return the online share that corresponds to a delay budget."""
    product = WHOLE_PPM * WHOLE_PPM
    kept_ppm = (product + (WHOLE_PPM + delay_ppm) // 2) // (WHOLE_PPM + delay_ppm)
    return max(kept_ppm, MIN_ONLINE_PPM)


def offline_percent(online_ppm: int, headroom_ppm: int) -> int:
    """Return the percentage of SMs for offline programs under MPS: the remaining share minus a margin.

    At least 10: a program that starts while the online share is large keeps its SMs long after that.
    """
    return max((WHOLE_PPM - online_ppm - headroom_ppm) * 100 // WHOLE_PPM, MIN_OFFLINE_PERCENT)


def offline_sms_of(online_ppm: int) -> int:
    """Return the part of the SMs that an online share leaves to offline work in a simple mode."""
    return max(WHOLE_PPM - online_ppm, MIN_SMS_PPM)


Shares: TypeAlias = tuple[tuple[int, int], ...]
"""Slot and share pairs, ascending by slot."""


class PeerTenant(NamedTuple):
    """A tenant of a device, as far as its peers are concerned."""

    slot: int
    generation: int
    priority: int
    promised: bool
    """Whether it has a latency objective."""
    limit_ppm: int = 0
    """The share that its user set; 0: none."""


def shares_among(tenants: Iterable[PeerTenant], needs: Mapping[int, int]) -> Shares:
    """Return the shares of tenants with objectives where two or more of one priority have one; need 0: unknown.

    A tenant whose user set a share keeps that; the others divide the remainder. Peers without an objective are counted
    as if they had one but get no share: next to shares that sum to the whole device, a tenant without one would wait
    for all others at each launch.
    """
    by_priority: dict[int, list[PeerTenant]] = {}
    for tenant in tenants:
        by_priority.setdefault(tenant.priority, []).append(tenant)
    shares: list[tuple[int, int]] = []
    for peers in by_priority.values():
        takers = {peer.slot for peer in peers if peer.promised and peer.slot in needs}
        if len(takers) > 1:
            free = {peer.slot: needs.get(peer.slot, 0) for peer in peers if not peer.limit_ppm}
            divided_shares = divided(_with_unknown_needs(free), WHOLE_PPM - sum(peer.limit_ppm for peer in peers))
            shares += [(slot, share_ppm) for slot, share_ppm in divided_shares if slot in takers]
    return tuple(sorted(shares))


def _with_unknown_needs(needs: Mapping[int, int]) -> dict[int, int]:
    """Replace unknown needs by the mean of the known ones."""
    known = [need_ppm for need_ppm in needs.values() if need_ppm > 0]
    mean_ppm = sum(known) // len(known) if known else 1
    return {slot: need_ppm if need_ppm > 0 else mean_ppm for slot, need_ppm in needs.items()}


def divided(needs: Mapping[int, int], whole_ppm: int = WHOLE_PPM) -> Shares:
    """Return the shares of peers in proportion to their needs.

    The result is empty for a single tenant, which gets what the others leave, and if there is too little to divide.
    Each peer gets at least a tenth of an equal part, so that an increase of its need can be measured. These shares are
    conserving: a tenant that does not use its share lends it to the others.
    """
    min_ppm = whole_ppm // (10 * len(needs)) if len(needs) > 1 else 0
    if min_ppm <= 0:
        return ()
    shares_needed = {slot: max(need_ppm, 1) for slot, need_ppm in sorted(needs.items())}
    remaining_ppm, total = whole_ppm - min_ppm * len(shares_needed), sum(shares_needed.values())
    return tuple((slot, min_ppm + remaining_ppm * need // total) for slot, need in shares_needed.items())
