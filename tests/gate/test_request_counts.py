"""The request statistics of a tenant equal the requests that it served."""

import math

from hypothesis import given
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate.activity import GateCounts
from cotenant.gate.request_buckets import bounds_of, bucket_of
from cotenant.gate.request_counts import request_stats_between
from cotenant.units.share import WHOLE_PPM

SLO_NS = 20_000_000
latencies = st.lists(st.integers(1 << 14, (1 << 36) - 1), max_size=60)


def page_of(latencies_ns: list[int], generation: int = 1) -> GateCounts:
    buckets = [0] * _native.REQUEST_BUCKETS
    for latency_ns in latencies_ns:
        buckets[bucket_of(latency_ns)] += 1
    over = sum(latency_ns > SLO_NS for latency_ns in latencies_ns)
    return GateCounts(
        generation=generation,
        requests_ended=len(latencies_ns),
        requests_over=over,
        requests_sum_ns=sum(latencies_ns),
        request_buckets=tuple(buckets),
    )


@given(latencies, latencies)
def test_sums_are_exact_and_quantiles_are_within_their_bucket(before: list[int], then: list[int]) -> None:
    served = request_stats_between(page_of(before), page_of([*before, *then]), 10**12, SLO_NS)
    over = sum(latency_ns > SLO_NS for latency_ns in then)
    assert (served.requests, served.over) == (len(then), over)
    if not then:
        assert (served.p50_ns, served.p99_ns, served.mean_ns, served.within_ppm) == (0, 0, 0, None)
        return
    assert served.mean_ns == sum(then) // len(then)
    assert served.within_ppm == WHOLE_PPM - over * WHOLE_PPM // len(then)
    for shown_ns, part in ((served.p50_ns, 0.5), (served.p99_ns, 0.99)):
        true_ns = sorted(then)[max(1, math.ceil(part * len(then))) - 1]
        low_ns, high_ns = bounds_of(bucket_of(true_ns))
        assert low_ns <= shown_ns <= high_ns


@given(latencies, latencies)
def test_next_tenant_of_the_slot_starts_at_zero(before: list[int], then: list[int]) -> None:
    served = request_stats_between(page_of(before), page_of(then, generation=2), 10**12, 0)
    assert served.requests == len(then)
    assert served.within_ppm is None, "without an objective nothing is kept or missed"


def test_request_of_a_dead_process_is_not_in_progress() -> None:
    now = 10**12
    for began_ns, oldest_ns in ((0, 0), (now - 5, 5), (now + 5, 0), (1, 0), (2**64 - 1, 0)):
        page = GateCounts(requests_began_ns=began_ns)
        assert request_stats_between(page, page, now, 0).oldest_ns == oldest_ns
