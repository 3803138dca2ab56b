"""Statistics of a tenant's requests between two snapshots of its page."""

from __future__ import annotations

import msgspec

from cotenant.gate.activity import GateCounts
from cotenant.gate.request_buckets import quantile_of
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

_STRAY_NS = 60 * SECOND_NS
_WRAP = 1 << 32


class RequestStats(msgspec.Struct, frozen=True):
    """The requests of one tenant that ended between two snapshots; latencies are accurate to a sixteenth."""

    requests: int
    p50_ns: int
    p99_ns: int
    mean_ns: int
    over: int
    """The number of requests that took longer than the objective."""
    within_ppm: int | None
    """The part of requests within the objective; None without an objective or without requests."""
    oldest_ns: int
    """The age of the oldest request in progress; 0: none."""
    is_reported: bool
    """Whether the program reports its requests; otherwise they are inferred from its launches."""
    slo_ns: int = 0
    for_ns: int = 0
    """The time between the snapshots; 0: since the tenant's first request."""


def request_stats_between(
    before: GateCounts, after: GateCounts, at_ns: Instant, slo_ns: int, for_ns: int = 0
) -> RequestStats:
    """Return the difference of the counters; after a reset, or in another generation, the new counters from zero."""
    is_same = before.generation == after.generation and before.requests_ended <= after.requests_ended
    first = before if is_same else GateCounts()
    old = first.request_buckets or (0,) * len(after.request_buckets)
    pairs = enumerate(zip(old, after.request_buckets, strict=True))
    buckets = [(bucket, (new - was) % _WRAP) for bucket, (was, new) in pairs if new != was]
    requests = after.requests_ended - first.requests_ended
    over = min(max(0, after.requests_over - first.requests_over), requests)
    sum_ns = max(0, after.requests_sum_ns - first.requests_sum_ns)
    began_ns = after.requests_began_ns
    return RequestStats(
        requests=requests,
        p50_ns=round(quantile_of(buckets, 0.5)) if requests else 0,
        p99_ns=round(quantile_of(buckets, 0.99)) if requests else 0,
        mean_ns=sum_ns // requests if requests else 0,
        over=over,
        within_ppm=WHOLE_PPM - over * WHOLE_PPM // requests if requests and slo_ns else None,
        oldest_ns=max(0, at_ns - began_ns) if began_ns and abs(at_ns - began_ns) <= _STRAY_NS else 0,
        is_reported=bool(after.requests_reported),
        slo_ns=slo_ns,
        for_ns=for_ns,
    )
