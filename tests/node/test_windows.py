"""Windows are the differences of the pages' sums; nothing is counted twice or lost."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.launch_estimate import LaunchEstimate
from cotenant.gate.request_buckets import bucket_of
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import PAGE_BYTES, device_memory, gate_page, read_page, write_tenant_table
from cotenant.node.model.control import DeviceWindow, TenantWindow
from cotenant.node.state.windows import STRAY_NS, Occupant, Windows

NOW = 10 * STRAY_NS
OCCUPANT = Occupant(3, 7, True, 5_000_000, 2, 300_000)


def page(**fields: int | list[int]) -> dict[str, int | list[int]]:
    blank = read_page(bytes(PAGE_BYTES))
    return {**blank, "generation": 7, **fields}


def only_tenant(window: DeviceWindow) -> TenantWindow:
    (tenant,) = window.tenants
    return tenant


sums = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.integers(0, 10**9)), min_size=1, max_size=20)


@given(sums)
def test_windows_add_up_to_the_counters_of_the_page(growth: list[tuple[int, int, int]]) -> None:
    windows = Windows(0, NOW)
    windows.window(NOW, [OCCUPANT], {3: page()})
    ended = bucket_count = busy_ns = 0
    measured = []
    for step, (requests, bucket_index, device_ns) in enumerate(growth, start=1):
        ended, bucket_count, busy_ns = ended + requests, bucket_count + requests, busy_ns + device_ns
        buckets = [0] * 352
        buckets[bucket_index % 5] = bucket_count
        current = page(requests_ended=ended, request_buckets=buckets, device_ns=busy_ns, active_ns=2 * busy_ns)
        measured.append(windows.window(NOW + step, [OCCUPANT], {3: current}))
    assert sum(only_tenant(window).requests for window in measured) == ended
    assert sum(only_tenant(window).device_ns for window in measured) == busy_ns
    assert sum(only_tenant(window).active_ns for window in measured) == 2 * busy_ns
    assert [window.begin_ns for window in measured] == [NOW + step for step in range(len(growth))]


def test_window_contains_the_latency_buckets_of_the_page() -> None:
    windows = Windows(0, NOW)
    windows.window(NOW, [OCCUPANT], {3: page()})
    buckets = [0] * 352
    buckets[bucket_of(2_000_000)] = 4
    current = page(requests_ended=4, requests_over=1, requests_sum_ns=8_000_000, request_buckets=buckets, overrun_ns=9)
    tenant = only_tenant(windows.window(NOW + 1, [OCCUPANT], {3: current}))
    expected = TenantWindow(*OCCUPANT[:4], 4, 1, 8_000_000, ((bucket_of(2_000_000), 4),), lost_ns=9)
    assert tenant == msgspec.structs.replace(expected, priority=2, limit_ppm=300_000)


def test_window_with_a_changed_objective_counts_misses_of_the_new_one() -> None:
    windows = Windows(0, NOW)
    windows.window(NOW, [OCCUPANT], {3: page()})
    buckets = [0] * 352
    buckets[bucket_of(2_000_000)], buckets[bucket_of(9_000_000)] = 4, 3
    current = page(requests_ended=7, requests_over=3, request_buckets=buckets)
    for slo_ns, over in ((1_000_000, 7), (20_000_000, 0), (4_000_000, 3)):
        reader = Windows(0, NOW)
        reader.window(NOW, [OCCUPANT], {3: page()})
        assert only_tenant(reader.window(NOW + 1, [OCCUPANT._replace(slo_ns=slo_ns)], {3: current})).over == over
        later = page(requests_ended=9, requests_over=4, request_buckets=buckets)
        assert only_tenant(reader.window(NOW + 2, [OCCUPANT._replace(slo_ns=slo_ns)], {3: later})).over == 1, (
            "as counted on the page"
        )


def test_new_tenant_or_reset_counters_begin_an_empty_window() -> None:
    windows = Windows(0, NOW)
    first = only_tenant(windows.window(NOW, [OCCUPANT], {3: page(requests_ended=100)}))
    assert first.requests == 0  # requests before the first read are in no window
    assert only_tenant(windows.window(NOW + 1, [OCCUPANT], {3: page(requests_ended=5)})).requests == 0
    assert only_tenant(windows.window(NOW + 2, [OCCUPANT], {3: page(requests_ended=9)})).requests == 4
    later = Occupant(3, 8, True, 5_000_000)
    assert only_tenant(windows.window(NOW + 3, [later], {3: page(requests_ended=50)})) == TenantWindow(*later)
    assert only_tenant(windows.window(NOW + 4, [later], {3: page(generation=8, requests_ended=60)})).requests == 0
    assert only_tenant(windows.window(NOW + 5, [later], {3: page(generation=8, requests_ended=61)})).requests == 1
    assert only_tenant(windows.window(NOW + 6, [later], {})) == TenantWindow(*later)
    assert windows.window(NOW + 7, [], {}).tenants == ()


def test_age_of_an_unfinished_request_is_zero_for_invalid_instants() -> None:
    windows = Windows(0, NOW)
    for began_ns, oldest_ns in ((0, 0), (NOW - 30, 30), (NOW - STRAY_NS - 1, 0), (NOW + 5, 0), (2**63, 0)):
        tenant = only_tenant(windows.window(NOW, [OCCUPANT], {3: page(requests_began_ns=began_ns)}))
        assert tenant.oldest_ns == oldest_ns


def test_window_of_a_page_that_the_gate_wrote() -> None:
    file = device_memory()
    write_tenant_table(file, GateRules(entries=(GateEntry(0, 7, 1, True),)))
    entry = TenantGate(file, (0, 7), [LaunchEstimate(1000, 1000)], [0], slo_ns=5_000_000)
    occupant, windows = Occupant(0, 7, True, 5_000_000), Windows(0, NOW)

    def read_window(now_ns: int) -> TenantWindow:
        return only_tenant(windows.window(now_ns, [occupant], {0: read_page(gate_page(file, 0))}))

    read_window(NOW)
    entry.began(NOW)
    assert read_window(NOW + 500).oldest_ns == 500
    entry.served(NOW, NOW + 6_000_000)
    served = read_window(NOW + 6_000_001)
    assert (served.requests, served.over, served.oldest_ns) == (1, 1, 0)
    assert served.latencies == ((bucket_of(6_000_000), 1),)
    assert served.sum_ns == 6_000_000
