"""Invariants of the device model for any work: no work is lost, order is kept, and every delay has a cause."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.softgpu.sim.device import (
    OWN_GROUP,
    Device,
    DeviceConfig,
    Kernel,
    Limits,
    OpKind,
    Record,
    ScriptClient,
    Step,
    StreamKind,
    preset,
)
from tests.support.device_reference import Launch, Reference
from tests.support.effort import examples

LIMITS = Limits(clients=4, contexts=8, streams=16, events=16, ops=512, records=1024)


def tiny(sm_count: int = 2, **changes: int) -> DeviceConfig:
    fields: dict[str, Any] = {"sm_count": sm_count, "slice_ns": 1000, "switch_ns": 0} | changes
    return msgspec.structs.replace(preset("v100"), **fields)


def kernel(blocks: int, block_ns: int, occupancy: int = 1, bytes_per_block: int = 0) -> Kernel:
    return Kernel(blocks=blocks, block_ns=block_ns, blocks_per_sm=occupancy, bytes_per_block=bytes_per_block)


def open_client(device: Device, group_label: int = OWN_GROUP, sm_cap: int = 0) -> tuple[int, int]:
    client = device.add_client(0, group_label)
    return client, device.create_context(0, client, sm_cap)


def run_out(device: Device) -> list[Record]:
    records = device.drain()
    while (change_ns := device.next_change_ns()) is not None:
        device.advance(change_ns)
        assert device.check() is None
        records += device.drain()
    return records


shapes = st.builds(kernel, st.integers(1, 40), st.integers(1, 500), st.integers(1, 4))


@given(st.integers(1, 8), st.integers(1, 32), st.integers(1, 10**6), st.integers(1, 10**6))
def test_kernel_alone_takes_its_waves_times_the_block_time(
    sm_count: int, occupancy: int, blocks: int, block_ns: int
) -> None:
    device = Device(tiny(sm_count), LIMITS)
    _, context = open_client(device)
    stream = device.create_stream(0, context)
    op = device.launch(7, stream, kernel(blocks, block_ns, occupancy))
    waves = -(-blocks // (sm_count * occupancy))
    assert device.project_ns(op) == 7 + waves * block_ns
    (record,) = run_out(device)
    assert (record.start_ns, record.end_ns, record.delayed_ns) == (7, 7 + waves * block_ns, 0)
    counters = device.count()
    assert (counters.kernels, counters.blocks, counters.busy_ns) == (1, blocks, waves * block_ns)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Reference, list[Launch]]:
    clients = draw(st.integers(1, 3))
    groups = [draw(st.sampled_from([index, 0])) for index in range(clients)]
    sm_count = draw(st.integers(1, 3))
    caps = [draw(st.sampled_from([0, 0, 1])) for _ in range(clients)]
    limits = draw(st.sampled_from([[0], [0, 1, 2]])) if sm_count > 2 else [0, 0, 1]
    model = Reference(sm_count, draw(st.integers(50, 400)), draw(st.sampled_from([0, 0, 13])), groups, caps)
    priorities = [[draw(st.sampled_from([0, 0, -1])) for _ in range(3)] for _ in range(clients)]
    launches = draw(
        st.lists(
            st.builds(
                Launch,
                client=st.integers(0, clients - 1),
                stream=st.integers(0, 2),
                submit_ns=st.integers(0, 600),
                blocks=st.one_of(st.integers(1, 12), st.integers(1, 60)),
                block_ns=st.integers(1, 120),
                occupancy=st.integers(1, 4),
                sm_cap=st.sampled_from(limits),
            ),
            min_size=1,
            max_size=9,
        )
    )
    for launch in launches:
        launch.priority = priorities[launch.client][launch.stream]
    return model, launches


@settings(max_examples=examples(80, 3000), deadline=None)
@given(cases())
def test_device_agrees_with_the_block_level_reference(case: tuple[Reference, list[Launch]]) -> None:
    model, launches = case
    device = Device(tiny(model.sm_count, slice_ns=model.slice_ns, switch_ns=model.switch_ns), LIMITS)
    labels = [OWN_GROUP if model.groups.count(group) == 1 else group for group in model.groups]
    contexts = [open_client(device, labels[i], model.caps[i]) for i in range(len(labels))]
    streams: dict[tuple[int, int], int] = {}
    model.groups = [model.groups.index(group) for group in model.groups]  # the model numbers groups as they come
    model.groups = [sorted(set(model.groups)).index(group) for group in model.groups]
    records = []
    for index, launch in sorted(enumerate(launches), key=lambda item: item[1].submit_ns):
        key = (launch.client, launch.stream)
        if key not in streams:
            context = contexts[launch.client][1]
            streams[key] = device.create_stream(0, context, StreamKind.NONBLOCKING, launch.priority)
        shape = kernel(launch.blocks, launch.block_ns, launch.occupancy)
        shape = msgspec.structs.replace(shape, sm_cap=launch.sm_cap)
        device.launch(launch.submit_ns, streams[key], shape, index)
        assert device.check() is None
        records += device.drain()
    records += run_out(device)
    model.run(launches)
    assert len(records) == len(launches)
    for record in records:
        launch = launches[record.tag]
        reported = (record.ready_ns, record.start_ns, record.end_ns)
        assert reported == (launch.ready_ns, launch.start_ns, launch.end_ns), (record, launch)
        assert abs(record.delayed_ns - launch.delayed_ns) <= 60  # one nanosecond per rounded piece
    for client, _ in contexts:
        counters = device.count_client(client)
        assert counters.delayed_ns == sum(device.delay_ns(client, other) for other, _ in contexts)
        assert device.delay_ns(client, client) == 0


@given(st.lists(shapes, min_size=1, max_size=12), st.integers(1, 3), st.lists(st.integers(0, 2), min_size=12))
def test_work_is_conserved_and_a_single_client_is_not_delayed(
    kernels: list[Kernel], streams: int, choice: list[int]
) -> None:
    device = Device(tiny(3, memory_bytes_per_s=10**12), LIMITS)
    client, context = open_client(device)
    handles = [device.create_stream(0, context, StreamKind.NONBLOCKING, -index) for index in range(streams)]
    for index, shape in enumerate(kernels):
        loaded = msgspec.structs.replace(shape, bytes_per_block=1000 * index)
        device.launch(index, handles[choice[index] % streams], loaded, index)
    records = run_out(device)
    counters = device.count()
    assert counters == device.count_context(context) == device.count_client(client)
    assert counters.blocks == sum(shape.blocks for shape in kernels)
    assert counters.traffic_bytes == sum(1000 * index * shape.blocks for index, shape in enumerate(kernels))
    assert counters.delayed_ns == sum(record.delayed_ns for record in records) == 0
    assert counters.sm_ns <= 3 * counters.busy_ns
    if all(shape.blocks * index == 0 for index, shape in enumerate(kernels)):
        assert counters.thread_ns == sum(shape.blocks * shape.block_ns * 256 for shape in kernels)


@given(st.integers(2, 40), st.integers(100, 5000), st.integers(0, 50))
def test_two_equal_contexts_get_half_of_the_device_each(count: int, block_ns: int, switch_ns: int) -> None:
    device = Device(tiny(2, slice_ns=1000, switch_ns=switch_ns), LIMITS)
    clients = [open_client(device) for _ in range(2)]
    ops = []
    for _, context in clients:
        stream = device.create_stream(0, context)
        ops.append([device.launch(0, stream, kernel(2, block_ns)) for _ in range(count)][-1])
    alone_ns = count * block_ns
    ends = [device.project_ns(op) or 0 for op in ops]
    records = run_out(device)
    assert ends == [max(r.end_ns for r in records if r.client == client) for client, _ in clients]
    counters = device.count()
    overhead_ns = counters.switches * switch_ns
    assert max(ends) == 2 * alone_ns + overhead_ns
    assert min(ends) >= 2 * alone_ns - 1000
    for (client, _), end_ns in zip(clients, ends, strict=True):
        assert device.count_client(client).busy_ns == alone_ns
        assert device.count_client(client).delayed_ns == end_ns - alone_ns  # one stream: all its delay is its own


@given(st.lists(st.tuples(st.integers(0, 3), shapes, st.integers(0, 300)), min_size=1, max_size=20))
def test_order_is_kept_within_a_stream_and_across_the_legacy_stream(work: list[tuple[int, Kernel, int]]) -> None:
    device = Device(tiny(2), LIMITS)
    _, context = open_client(device)
    kinds = [StreamKind.LEGACY, StreamKind.BLOCKING, StreamKind.BLOCKING, StreamKind.NONBLOCKING]
    streams = [device.create_stream(0, context, kind) for kind in kinds]
    now_ns = 0
    for index, (stream, shape, gap_ns) in enumerate(work):
        now_ns += gap_ns
        device.launch(now_ns, streams[stream], shape, index)
    done = {record.tag: record for record in run_out(device)}
    assert len(done) == len(work)
    for late, (stream, _, _) in enumerate(work):
        for early, (other, _, _) in enumerate(work[:late]):
            tied = {kinds[stream], kinds[other]} == {StreamKind.LEGACY, StreamKind.BLOCKING}
            if stream == other or tied:
                assert done[early].end_ns <= done[late].ready_ns


@given(shapes, shapes, st.integers(0, 400), st.booleans())
def test_event_orders_streams_and_reports_its_instant(
    first: Kernel, second: Kernel, gap_ns: int, same_client: bool
) -> None:
    device = Device(tiny(2), LIMITS)
    _, first_context = open_client(device)
    second_context = first_context if same_client else open_client(device)[1]
    a = device.create_stream(0, first_context, StreamKind.NONBLOCKING)
    b = device.create_stream(0, second_context, StreamKind.NONBLOCKING)
    event = device.create_event(first_context)
    device.wait_event(0, b, event)  # never recorded: waits for nothing
    device.launch(0, a, first, 1)
    device.record_event(0, a, event)
    device.wait_event(gap_ns, b, event)
    assert device.event_instant_ns(event) in (None, device.now_ns()) or gap_ns > 0
    op = device.launch(gap_ns, b, second, 2)
    projected_ns = device.project_ns(op)
    done = {record.tag: record for record in run_out(device) if record.kind is OpKind.KERNEL}
    assert device.event_instant_ns(event) == done[1].end_ns
    assert done[2].ready_ns == max(gap_ns, done[1].end_ns)
    assert projected_ns == done[2].end_ns


@given(st.integers(1, 4), st.integers(2, 50), st.integers(10, 500), st.integers(1, 10**4), st.integers(1, 20))
def test_priority_acts_at_block_boundaries(
    sm_count: int, waves: int, block_ns: int, at_ns: int, urgent_ns: int
) -> None:
    device = Device(tiny(sm_count), LIMITS)
    _, context = open_client(device)
    low = device.create_stream(0, context, StreamKind.NONBLOCKING, 0)
    high = device.create_stream(0, context, StreamKind.NONBLOCKING, -1)
    device.launch(0, low, kernel(sm_count * waves, block_ns), 0)
    device.launch(at_ns, high, kernel(sm_count, urgent_ns), 1)
    done = {record.tag: record for record in run_out(device)}
    boundary_ns = min(-(-at_ns // block_ns), waves) * block_ns
    if at_ns % block_ns == 0 and at_ns < waves * block_ns:
        boundary_ns = at_ns + block_ns  # the next wave began at this very instant, before the launch
    assert done[1].start_ns == max(at_ns, boundary_ns)
    assert done[1].end_ns == done[1].start_ns + urgent_ns
    delay_ns = urgent_ns if done[1].start_ns < waves * block_ns else 0
    assert done[0].end_ns == waves * block_ns + delay_ns
    assert done[0].delayed_ns == done[1].delayed_ns == 0  # its own process: no other client caused a delay


@given(st.lists(st.tuples(st.integers(0, 1), shapes), min_size=1, max_size=12), st.integers(1, 3), st.booleans())
def test_sm_cap_is_never_exceeded(work: list[tuple[int, Kernel]], cap: int, shared: bool) -> None:
    device = Device(tiny(4), LIMITS)
    _, capped = open_client(device, 5, cap)
    free = open_client(device, 5)[1] if shared else capped
    streams = [device.create_stream(0, context, StreamKind.NONBLOCKING) for context in (capped, free)]
    for index, (stream, shape) in enumerate(work):
        device.launch(10 * index, streams[stream], shape)
    before, at_ns = device.count_context(capped).thread_ns, device.now_ns()
    while (change_ns := device.next_change_ns()) is not None:
        device.advance(change_ns)
        counters = device.count_context(capped)
        most = cap * 4 * 256 * (change_ns - at_ns)  # 4 blocks of 256 threads fill an SM at these shapes
        assert counters.thread_ns - before <= most
        assert counters.sm_ns <= cap * counters.busy_ns
        before, at_ns = counters.thread_ns, change_ns


@given(st.lists(st.tuples(shapes, st.integers(0, 5)), min_size=1, max_size=12))
def test_each_kernel_of_a_stream_keeps_the_limit_of_its_launch(work: list[tuple[Kernel, int]]) -> None:
    device = Device(tiny(5), LIMITS)
    _, context = open_client(device)
    stream = device.create_stream(0, context)
    for shape, cap in work:
        device.launch(0, stream, msgspec.structs.replace(shape, sm_cap=cap))
    for record, (shape, cap) in zip(run_out(device), work, strict=True):
        waves = -(-shape.blocks // ((cap or 5) * shape.blocks_per_sm))
        assert record.end_ns - record.start_ns == waves * shape.block_ns


limited_jobs = st.tuples(st.integers(0, 3), st.integers(0, 900), shapes, st.integers(0, 4))


@given(st.lists(limited_jobs, min_size=1, max_size=14), st.booleans())
def test_kernels_with_limits_hold_at_most_the_sms_of_the_largest(
    work: list[tuple[int, int, Kernel, int]], shared: bool
) -> None:
    """All kernels of the first client, in two streams, have limits; those of the second may."""
    device = Device(tiny(4), LIMITS)
    (client, context), (_, other) = (open_client(device, 5 if shared else OWN_GROUP) for _ in range(2))
    streams = [device.create_stream(0, owner, StreamKind.NONBLOCKING) for owner in (context, context, other, other)]
    caps: dict[int, int] = {}
    for index, at_ns, shape, cap in sorted(work, key=lambda job: job[1]):
        own = max(cap, 1) if index < 2 else cap
        op = device.launch(at_ns, streams[index], msgspec.structs.replace(shape, sm_cap=own))
        if index < 2:
            caps[op] = own
    before, at_ns = device.count_client(client), device.now_ns()
    while (change_ns := device.next_change_ns()) is not None:
        largest = max((cap for op, cap in caps.items() if not device.is_done(op)), default=0)
        device.advance(change_ns)
        assert device.check() is None
        after = device.count_client(client)
        assert after.thread_ns - before.thread_ns <= largest * 4 * 256 * (change_ns - at_ns)  # see above
        before, at_ns = after, change_ns
    assert all(device.is_done(op) for op in caps)


jobs = st.tuples(st.integers(0, 2), st.integers(0, 4), shapes)


@given(st.lists(jobs, max_size=20), st.integers(0, 3000), st.booleans())
def test_killed_client_leaves_no_work_and_no_memory(
    work: list[tuple[int, int, Kernel]], at_ns: int, share_group: bool
) -> None:
    device = Device(tiny(2), LIMITS)
    clients = [open_client(device, 1 if share_group else OWN_GROUP) for _ in range(3)]
    streams = [device.create_stream(0, context) for _, context in clients]
    events = [device.create_event(context) for _, context in clients]
    for _, context in clients:
        device.take_memory(context, 10**9)
    for instant_ns, (client_index, kind, shape) in enumerate(work):
        if kind == 0:
            device.record_event(instant_ns, streams[client_index], events[client_index])
        elif kind == 1:
            device.wait_event(instant_ns, streams[client_index], events[(client_index + 1) % 3])
        elif kind == 2:
            device.copy(instant_ns, streams[client_index], OpKind.COPY_HTOD, 10**6)
        else:
            device.launch(instant_ns, streams[client_index], shape)
    device.kill_client(at_ns, clients[0][0])
    assert device.check() is None
    assert device.free_memory_bytes() == device.config.memory_bytes - 2 * 10**9
    early = device.drain()
    late = run_out(device)
    assert all(record.client != clients[0][0] for record in late)
    expected = sum(client_index != 0 for client_index, _, _ in work)
    done = sum(record.client != clients[0][0] for record in early + late)
    assert done == expected - sum(
        client_index != 0 and kind == 1 for client_index, kind, _ in work
    )  # waits leave no record
    for client, _ in clients[1:]:
        device.kill_client(device.now_ns(), client)
    assert device.free_memory_bytes() == device.config.memory_bytes
    assert device.next_change_ns() is None
    assert device.check() is None


@given(st.integers(1, 20), st.integers(1, 20), st.integers(100, 10**5))
def test_scarce_bandwidth_is_shared_max_min_fairly(a_share: int, b_share: int, block_ns: int) -> None:
    """Two kernels on half of the SMs each ask for twentieths of the bandwidth: max-min fair, and counted as delay."""
    bandwidth = 10**12
    device = Device(tiny(2, memory_bytes_per_s=bandwidth), LIMITS)
    clients = [open_client(device, 1) for _ in range(2)]
    for (_, context), share in zip(clients, (a_share, b_share), strict=True):
        stream = device.create_stream(0, context)
        device.launch(0, stream, kernel(1, block_ns, 1, block_ns * bandwidth * share // 20 // 10**9), share)
    end_ns = max(record.end_ns for record in run_out(device))
    small, big = sorted((a_share, b_share))
    if small + big <= 20:
        assert end_ns == block_ns
        assert device.count().delayed_ns == 0
        return
    first_ns = block_ns * max(small, 10) / 10  # the smaller one gets what it asks, or half
    rate = (20 - min(small, 10)) / big  # of the larger one until then
    expected_ns = first_ns + block_ns - first_ns * rate
    assert abs(end_ns - expected_ns) <= 3
    assert abs(device.count().delayed_ns - (end_ns - block_ns) - (first_ns - block_ns)) <= 6


class Host:
    """Reference for one process of the batch driver: it launches, runs ahead and waits."""

    def __init__(self, device: Device, client: ScriptClient, index: int) -> None:
        _, context = open_client(device, client.group_label, client.sm_cap)
        self.device = device
        self.streams = [device.create_stream(0, context, kind, priority) for kind, priority in client.streams]
        self.steps = list(client.steps) * client.repeats
        self.at_ns = client.start_ns + self.steps[0].host_ns
        self.ops: list[int] = []
        self.waits = False
        self.tag = index << 48

    def has_nothing_under_way(self) -> bool:
        return all(self.device.is_done(op) for op in self.ops)

    def end_step(self, now_ns: int) -> None:
        self.waits = False
        self.steps.pop(0)
        if self.steps:
            self.at_ns = now_ns + self.steps[0].host_ns

    def act(self, kernels: list[Kernel]) -> None:
        step = self.steps[0]
        if step.kernel is not None:
            self.ops.append(self.device.launch(self.at_ns, self.streams[step.stream], kernels[step.kernel], self.tag))
            self.tag += 1
        if step.sync and not self.has_nothing_under_way():
            self.waits = True
        else:
            self.end_step(self.at_ns)


def step_by_step(device: Device, kernels: list[Kernel], clients: list[ScriptClient]) -> dict[int, Record]:
    """Do what the batch driver does in one call; return records by tag (client and launch)."""
    hosts = [Host(device, client, index) for index, client in enumerate(clients)]
    done: dict[int, Record] = {}
    while True:
        acting = [host for host in hosts if host.steps and not host.waits]
        next_host = min(acting, key=lambda host: host.at_ns, default=None)
        change_ns = device.next_change_ns()
        if change_ns is not None and (next_host is None or change_ns <= next_host.at_ns):
            device.advance(change_ns)
            done.update((record.tag, record) for record in device.drain())
            for host in hosts:
                if host.waits and host.has_nothing_under_way():
                    host.end_step(change_ns)
        elif next_host is not None:
            next_host.act(kernels)
        else:
            return done


steps = st.builds(Step, st.integers(0, 400), st.sampled_from([None, 0, 1, 2]), st.integers(0, 1), st.booleans())
scripts = st.builds(
    ScriptClient,
    steps=st.lists(steps, min_size=1, max_size=6).map(tuple),
    repeats=st.integers(1, 3),
    streams=st.just(((StreamKind.LEGACY, 0), (StreamKind.NONBLOCKING, -1))),
    group_label=st.sampled_from([OWN_GROUP, OWN_GROUP, 3]),
    sm_cap=st.sampled_from([0, 1]),
    start_ns=st.integers(0, 500),
)
traffic = st.builds(
    Kernel,
    blocks=st.integers(1, 30),
    block_ns=st.integers(1, 400),
    blocks_per_sm=st.integers(1, 4),
    bytes_per_block=st.integers(0, 200_000),
    sm_cap=st.sampled_from([0, 0, 1]),
)


@settings(max_examples=examples(60, 2000), deadline=None)
@given(st.lists(scripts, min_size=1, max_size=3), st.lists(traffic, min_size=3, max_size=3))
def test_the_batch_driver_equals_the_step_by_step_api(clients: list[ScriptClient], kernels: list[Kernel]) -> None:
    config = tiny(2, switch_ns=20)
    batch, again, single = (Device(config, LIMITS) for _ in range(3))
    results = batch.run(kernels, clients)
    assert results == again.run(kernels, clients)  # the same calls, the same answers
    records = step_by_step(single, kernels, clients)
    assert batch.count() == single.count()
    assert batch.check() is None
    counters = batch.count()
    # Instants are whole nanoseconds, so a wave of blocks may end up to one too early, and once more each time that a
    # kernel or a wave comes or goes and the others' share of the bandwidth changes.
    early_ns = 2 * counters.blocks + 2 * counters.kernels
    assert counters.traffic_bytes * 10**9 <= config.memory_bytes_per_s * (counters.busy_ns + early_ns)
    for index, result in enumerate(results):
        assert result.launches == result.completions == len(result.ends_ns)
        assert result.finished_ns is not None
        for launch in range(result.launches):
            record = records[index << 48 | launch]
            assert result.starts_ns[launch] == record.start_ns
            assert result.ends_ns[launch] == record.end_ns
            assert result.delays_ns[launch] == record.delayed_ns
