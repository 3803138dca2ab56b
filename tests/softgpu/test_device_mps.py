"""Clients under MPS in the device model: no client exceeds its share, and kernels overlap as far as SMs are free."""

from __future__ import annotations

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.softgpu.mps.limits import share_of
from cotenant.softgpu.sim.device import OWN_GROUP, Device, Kernel, StreamKind
from tests.softgpu.test_device_model import LIMITS, kernel, open_client, run_out, tiny
from tests.support.effort import examples

GROUP = 7
THREADS = 256
shapes = st.builds(kernel, st.integers(1, 60), st.integers(1, 400), st.integers(1, 4), st.sampled_from([0, 0, 20000]))


@settings(max_examples=examples(60, 2000), deadline=None)
@given(
    st.integers(4, 20),
    st.lists(st.sampled_from([30.0, 30.0, 10.0, 62.5, 100.0]), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 900), shapes), min_size=1, max_size=14),
)
def test_a_client_at_30_percent_never_uses_more_than_30_percent_of_the_sms(
    sm_count: int, percentages: list[float], work: list[tuple[int, int, int, Kernel]]
) -> None:
    device = Device(tiny(sm_count), LIMITS)
    caps = [share_of(sm_count, percentage) for percentage in percentages]
    assert all(0 < cap <= max(1, sm_count * 30 // 100) for cap, p in zip(caps, percentages, strict=True) if p == 30.0)
    clients = [open_client(device, GROUP) for _ in caps]
    for cap, (client, _) in zip(caps, clients, strict=True):
        device.cap_client(0, client, cap)
    contexts = [(first, device.create_context(0, client)) for client, first in clients]
    streams = [[device.create_stream(0, c, StreamKind.NONBLOCKING) for c in pair] for pair in contexts]
    for client_index, stream, at_ns, shape in sorted(work, key=lambda job: job[2]):
        device.launch(at_ns, streams[client_index % len(clients)][stream], shape)
    before = [device.count_client(client) for client, _ in clients]
    at_ns = device.now_ns()
    while (change_ns := device.next_change_ns()) is not None:
        device.advance(change_ns)
        assert device.check() is None
        after = [device.count_client(client) for client, _ in clients]
        for cap, old, new in zip(caps, before, after, strict=True):
            most = (cap or sm_count) * (change_ns - at_ns)
            assert new.sm_ns - old.sm_ns <= most
            assert new.thread_ns - old.thread_ns <= most * 4 * THREADS  # at these shapes 4 blocks fill an SM
        before, at_ns = after, change_ns
    assert device.count().sm_ns <= sum(counters.sm_ns for counters in before)


def width() -> st.SearchStrategy[int]:
    return st.integers(1, 12)


@given(st.integers(2, 12), width(), width(), st.integers(100, 1000), st.integers(100, 1000))
def test_narrow_and_wide_kernels_overlap_as_far_as_sms_are_free(
    sm_count: int, narrow: int, wide: int, narrow_ns: int, wide_ns: int
) -> None:
    narrow, wide = min(narrow, sm_count), min(wide, sm_count)
    device = Device(tiny(sm_count), LIMITS)
    streams = [device.create_stream(0, open_client(device, GROUP)[1]) for _ in range(2)]
    for tag, (blocks, block_ns) in enumerate(((narrow, narrow_ns), (wide, wide_ns))):
        device.launch(0, streams[tag], kernel(blocks, block_ns), tag)
    first, second = sorted(run_out(device), key=lambda record: record.tag)
    assert (first.end_ns, first.delayed_ns) == (narrow_ns, 0)
    # The second one takes every SM as it becomes free: at once those that the first leaves over.
    free_ns = [0] * (sm_count - narrow) + [narrow_ns] * narrow
    ends_ns = []
    for _ in range(wide):
        ends_ns.append(free_ns[0] + wide_ns)
        heapq.heapreplace(free_ns, ends_ns[-1])
    assert second.start_ns == (0 if narrow < sm_count else narrow_ns)
    assert second.end_ns == max(ends_ns)
    assert (second.delayed_ns == 0) == (narrow + wide <= sm_count)
    assert device.count().switches == 0


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5000), st.integers(1, 5000))
def test_narrow_kernels_take_turns_without_mps(
    first_blocks: int, second_blocks: int, first_ns: int, second_ns: int
) -> None:
    device = Device(tiny(8), LIMITS)
    streams = [device.create_stream(0, open_client(device, OWN_GROUP)[1]) for _ in range(2)]
    for stream, blocks, block_ns in zip(streams, (first_blocks, second_blocks), (first_ns, second_ns), strict=True):
        device.launch(0, stream, kernel(blocks, block_ns))
    assert max(record.end_ns for record in run_out(device)) == first_ns + second_ns
