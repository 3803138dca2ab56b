"""How did a tenant's requests go between two looks at its page?"""

from __future__ import annotations

import msgspec

from cotenant.domain.control import quantile_of
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.pace import GateCounts

_STRAY_NS = 60 * SECOND_NS
_WRAP = 1 << 32


class Served(msgspec.Struct, frozen=True):
    """The requests of one tenant that ended between two looks; latencies by buckets of a sixteenth."""

    requests: int
    p50_ns: int
    p99_ns: int
    mean_ns: int
    over: int
    """Of them, those that took longer than the objective."""
    within_ppm: int | None
    """The part that kept the objective; None without one, or without any request."""
    oldest_ns: int
    """How long the request under way has lasted already; 0: none."""
    is_told: bool
    """Whether the program tells its requests; else they are seen."""
    slo_ns: int = 0
    for_ns: int = 0
    """How far the looks are apart; 0: since the tenant's first request."""


def served_between(before: GateCounts, after: GateCounts, at_ns: Instant, slo_ns: int, for_ns: int = 0) -> Served:
    """What was added; sums that shrank, or that are another generation's, are taken from the beginning."""
    is_same = before.generation == after.generation and before.requests_ended <= after.requests_ended
    first = before if is_same else GateCounts()
    old = first.request_buckets or (0,) * len(after.request_buckets)
    pairs = enumerate(zip(old, after.request_buckets, strict=True))
    buckets = [(bucket, (new - was) % _WRAP) for bucket, (was, new) in pairs if new != was]
    requests = after.requests_ended - first.requests_ended
    over = min(max(0, after.requests_over - first.requests_over), requests)
    sum_ns = max(0, after.requests_sum_ns - first.requests_sum_ns)
    began_ns = after.requests_began_ns
    return Served(
        requests=requests,
        p50_ns=round(quantile_of(buckets, 0.5)) if requests else 0,
        p99_ns=round(quantile_of(buckets, 0.99)) if requests else 0,
        mean_ns=sum_ns // requests if requests else 0,
        over=over,
        within_ppm=WHOLE_PPM - over * WHOLE_PPM // requests if requests and slo_ns else None,
        oldest_ns=max(0, at_ns - began_ns) if began_ns and abs(at_ns - began_ns) <= _STRAY_NS else 0,
        is_told=bool(after.requests_told),
        slo_ns=slo_ns,
        for_ns=for_ns,
    )
