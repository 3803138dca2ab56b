"""Windows are the differences of the pages' sums; nothing is counted twice or lost."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.request_buckets import bucket_of
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.gate.tenant_gate import LaunchEstimate, TenantGate
from cotenant.gate.tenant_table import file_bytes, format_tenant_table, page_offset, read_page, write_tenant_table
from cotenant.node.model.control import DeviceWindow, TenantWindow
from cotenant.node.state.windows import STRAY_NS, Occupant, Windows

NOW = 10 * STRAY_NS
HERE = Occupant(3, 7, True, 5_000_000, 2, 300_000)


def page(**said: int | list[int]) -> dict[str, int | list[int]]:
    blank = read_page(bytes(file_bytes(1) - page_offset(0)))
    return {**blank, "generation": 7, **said}


def one(window: DeviceWindow) -> TenantWindow:
    (tenant,) = window.tenants
    return tenant


sums = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 10**9)), min_size=1, max_size=20)


@given(sums)
def test_windows_add_up_to_what_the_pages_say(growth: list[tuple[int, int, int]]) -> None:
    windows = Windows(0, NOW)
    windows.window(NOW, [HERE], {3: page()})
    ended = bucket = busy_ns = 0
    found = []
    for step, (requests, elsewhere, device_ns) in enumerate(growth, start=1):
        ended, bucket, busy_ns = ended + requests, bucket + requests, busy_ns + device_ns
        buckets = [0] * 352
        buckets[elsewhere % 5] = bucket
        said = page(requests_ended=ended, request_buckets=buckets, device_ns=busy_ns, active_ns=2 * busy_ns)
        found.append(windows.window(NOW + step, [HERE], {3: said}))
    assert sum(one(window).requests for window in found) == ended
    assert sum(one(window).device_ns for window in found) == busy_ns
    assert sum(one(window).active_ns for window in found) == 2 * busy_ns
    assert [window.begin_ns for window in found] == [NOW + step for step in range(len(growth))]


def test_a_latency_is_counted_in_the_bucket_that_the_page_has_it_in() -> None:
    windows = Windows(0, NOW)
    windows.window(NOW, [HERE], {3: page()})
    buckets = [0] * 352
    buckets[bucket_of(2_000_000)] = 4
    said = page(requests_ended=4, requests_over=1, requests_sum_ns=8_000_000, request_buckets=buckets, overrun_ns=9)
    tenant = one(windows.window(NOW + 1, [HERE], {3: said}))
    counted = TenantWindow(*HERE[:4], 4, 1, 8_000_000, ((bucket_of(2_000_000), 4),), lost_ns=9)
    assert tenant == msgspec.structs.replace(counted, priority=2, limit_ppm=300_000)


def test_requests_that_ended_before_the_objective_changed_are_judged_by_the_new_one() -> None:
    windows = Windows(0, NOW)
    windows.window(NOW, [HERE], {3: page()})
    buckets = [0] * 352
    buckets[bucket_of(2_000_000)], buckets[bucket_of(9_000_000)] = 4, 3
    said = page(requests_ended=7, requests_over=3, request_buckets=buckets)
    for slo_ns, over in ((1_000_000, 7), (20_000_000, 0), (4_000_000, 3)):
        spins = Windows(0, NOW)
        spins.window(NOW, [HERE], {3: page()})
        assert one(spins.window(NOW + 1, [HERE._replace(slo_ns=slo_ns)], {3: said})).over == over
        later = page(requests_ended=9, requests_over=4, request_buckets=buckets)
        assert one(spins.window(NOW + 2, [HERE._replace(slo_ns=slo_ns)], {3: later})).over == 1, "as the page says"


def test_somebody_new_or_sums_that_shrank_begin_anew() -> None:
    windows = Windows(0, NOW)
    first = one(windows.window(NOW, [HERE], {3: page(requests_ended=100)}))
    assert first.requests == 0  # what happened before anybody looked is in no window
    assert one(windows.window(NOW + 1, [HERE], {3: page(requests_ended=5)})).requests == 0
    assert one(windows.window(NOW + 2, [HERE], {3: page(requests_ended=9)})).requests == 4
    later = Occupant(3, 8, True, 5_000_000)
    assert one(windows.window(NOW + 3, [later], {3: page(requests_ended=50)})) == TenantWindow(*later)
    assert one(windows.window(NOW + 4, [later], {3: page(generation=8, requests_ended=60)})).requests == 0
    assert one(windows.window(NOW + 5, [later], {3: page(generation=8, requests_ended=61)})).requests == 1
    assert one(windows.window(NOW + 6, [later], {})) == TenantWindow(*later)
    assert windows.window(NOW + 7, [], {}).tenants == ()


def test_a_request_under_way_is_as_old_as_it_says_unless_that_is_no_instant() -> None:
    windows = Windows(0, NOW)
    for began_ns, oldest_ns in ((0, 0), (NOW - 30, 30), (NOW - STRAY_NS - 1, 0), (NOW + 5, 0), (2**63, 0)):
        tenant = one(windows.window(NOW, [HERE], {3: page(requests_began_ns=began_ns)}))
        assert tenant.oldest_ns == oldest_ns


def test_pages_are_read_as_the_gate_writes_them() -> None:
    file = bytearray(file_bytes(1))
    format_tenant_table(file, 1)
    write_tenant_table(file, GateRules(entries=(GateEntry(0, 7, 1, True),)))
    entry = TenantGate(file, (0, 7), [LaunchEstimate(1000, 1000)], [0], slo_ns=5_000_000)
    here, windows = Occupant(0, 7, True, 5_000_000), Windows(0, NOW)

    def look(now_ns: int) -> TenantWindow:
        return one(windows.window(now_ns, [here], {0: read_page(file[page_offset(0) : page_offset(1)])}))

    look(NOW)
    entry.began(NOW, NOW + 10)
    assert look(NOW + 500).oldest_ns == 500
    entry.served(NOW, NOW + 6_000_000)
    served = look(NOW + 6_000_001)
    assert (served.requests, served.over, served.oldest_ns) == (1, 1, 0)
    assert served.latencies == ((bucket_of(6_000_000), 1),)
    assert served.sum_ns == 6_000_000
