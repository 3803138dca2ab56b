"""A slowed clock loses no work and keeps counters correct; a stopped client's work ends and its memory stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotenant.softgpu.sim.device import FULL_SPEED, OWN_GROUP, Device, Kernel, Record
from tests.softgpu.test_device_model import LIMITS, kernel, open_client, run_out, tiny

SPEEDS = st.integers(FULL_SPEED // 10, FULL_SPEED)
KERNELS = st.builds(
    kernel,
    blocks=st.integers(1, 30),
    block_ns=st.integers(1, 5000),
    occupancy=st.sampled_from([1, 2, 4]),
    bytes_per_block=st.integers(0, 3000),
)
WORK = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20000), KERNELS), min_size=1, max_size=12)
CHANGES = st.lists(st.tuples(st.integers(0, 60000), SPEEDS), max_size=8)


def open_stream(device: Device, group_label: int = OWN_GROUP) -> tuple[int, int]:
    """Return a new client and a stream of it."""
    client, context = open_client(device, group_label)
    return client, device.create_stream(0, context)


def play(
    work: list[tuple[int, int, Kernel]], changes: list[tuple[int, int]], labels: tuple[int, ...], **config: int
) -> tuple[Device, list[int], list[Record]]:
    """Launch kernels and change the speed at given instants, and run until all work is done."""
    device = Device(tiny(**config), LIMITS)
    clients = [open_stream(device, label) for label in labels]
    calls = [(at_ns, 0, call) for call, (at_ns, _) in enumerate(changes)]
    calls += [(at_ns, 1, call) for call, (_, at_ns, _) in enumerate(work)]
    for at_ns, is_launch, call in sorted(calls):
        if is_launch:
            client_index, _, grid = work[call]
            device.launch(at_ns, clients[client_index][1], grid, tag=call)
        else:
            device.set_speed(at_ns, changes[call][1])
        assert device.check() is None
    return device, [client for client, _ in clients], run_out(device)


@given(grid=KERNELS, changes=CHANGES)
def test_integrated_speed_equals_the_work_of_the_kernel(grid: Kernel, changes: list[tuple[int, int]]) -> None:
    """Speed integrated from start to end is the kernel's time at full speed, but for whole nanoseconds."""
    alone = play([(0, 0, grid)], [], (OWN_GROUP,))[2][0]
    slowed = play([(0, 0, grid)], changes, (OWN_GROUP,))[2][0]
    given_units, speed, since_ns = 0, FULL_SPEED, 0
    for at_ns, next_speed in [*sorted(changes, key=lambda change: change[0]), (slowed.end_ns, FULL_SPEED)]:
        until_ns = min(at_ns, slowed.end_ns)
        given_units += speed * (until_ns - since_ns)
        speed, since_ns = next_speed, until_ns
    surplus_units = given_units - alone.end_ns * FULL_SPEED
    # Ends are rounded up: at each change, for each wave, and with bandwidth to share at full speed too.
    shared_ns = 3 * grid.blocks if grid.bytes_per_block else 0
    assert -shared_ns * FULL_SPEED <= surplus_units <= (grid.blocks + len(changes) + 1 + shared_ns) * FULL_SPEED


@given(work=WORK, instants=st.lists(st.integers(0, 60000), max_size=8), share_group=st.booleans())
def test_setting_full_speed_changes_nothing(
    work: list[tuple[int, int, Kernel]], instants: list[int], share_group: bool
) -> None:
    labels = (1, 1, OWN_GROUP) if share_group else (OWN_GROUP,) * 3
    plain, _, expected = play(work, [], labels)
    changed, _, records = play(work, [(at_ns, FULL_SPEED) for at_ns in instants], labels)
    assert records == expected
    assert changed.count() == plain.count()


@given(work=WORK, changes=CHANGES, share_group=st.booleans())
def test_counters_add_up_at_any_speed(
    work: list[tuple[int, int, Kernel]], changes: list[tuple[int, int]], share_group: bool
) -> None:
    labels = (1, 1, OWN_GROUP) if share_group else (OWN_GROUP,) * 3
    device, clients, records = play(work, changes, labels)
    assert len(records) == len(work)
    assert device.count().blocks == sum(grid.blocks for _, _, grid in work)
    assert device.count().traffic_bytes == sum(grid.blocks * grid.bytes_per_block for _, _, grid in work)
    for waiter in clients:
        delayed_ns = device.count_client(waiter).delayed_ns
        assert delayed_ns == sum(device.delay_ns(waiter, culprit) for culprit in clients)
        assert delayed_ns == sum(record.delayed_ns for record in records if record.client == waiter)


@given(work=WORK, halvings=st.integers(1, 3), share_group=st.booleans())
def test_slow_device_scales_every_instant(
    work: list[tuple[int, int, Kernel]], halvings: int, share_group: bool
) -> None:
    """With arrivals, slices and switches as much slower, everything happens that much later, to the nanosecond."""
    without_traffic = [
        (client_index, at_ns, kernel(grid.blocks, grid.block_ns, grid.blocks_per_sm))
        for client_index, at_ns, grid in work
    ]
    labels = (1, 1, OWN_GROUP) if share_group else (OWN_GROUP,) * 3
    scale = 1 << halvings
    quick = play(without_traffic, [], labels, slice_ns=3000, switch_ns=100)[2]
    stretched = [(client_index, at_ns * scale, grid) for client_index, at_ns, grid in without_traffic]
    slow = play(stretched, [(0, FULL_SPEED // scale)], labels, slice_ns=3000 * scale, switch_ns=100 * scale)[2]
    assert [(r.tag, r.start_ns, r.end_ns) for r in slow] == [
        (r.tag, r.start_ns * scale, r.end_ns * scale) for r in quick
    ]


@given(work=WORK, at_ns=st.integers(0, 30000), share_group=st.booleans())
def test_stopped_client_affects_others_as_a_killed_one_and_keeps_its_memory(
    work: list[tuple[int, int, Kernel]], at_ns: int, share_group: bool
) -> None:
    labels = (1, 1, OWN_GROUP) if share_group else (OWN_GROUP,) * 3
    outcomes = []
    for stops in (True, False):
        device = Device(tiny(), LIMITS)
        clients = [open_stream(device, label) for label in labels]
        context = device.create_context(0, clients[0][0])
        device.take_memory(context, 1000)
        for client_index, when_ns, grid in sorted(work, key=lambda entry: entry[1]):
            if when_ns < at_ns:
                device.launch(when_ns, clients[client_index][1], grid)
        (device.stop_client if stops else device.kill_client)(at_ns, clients[0][0])
        assert device.check() is None
        assert device.config.memory_bytes - device.free_memory_bytes() == (1000 if stops else 0)
        others = [record for record in run_out(device) if record.client != clients[0][0]]
        outcomes.append([(r.client, r.start_ns, r.end_ns, r.delayed_ns) for r in others])
        if stops:  # its stream still takes work
            op = device.launch(device.now_ns(), clients[0][1], kernel(1, 10))
            run_out(device)
            assert device.is_done(op)
    assert outcomes[0] == outcomes[1]


@given(grids=st.lists(KERNELS, min_size=1, max_size=4), at_ns=st.integers(0, 20000))
def test_cut_kernel_is_complete_and_the_next_one_begins(grids: list[Kernel], at_ns: int) -> None:
    device = Device(tiny(), LIMITS)
    _, stream = open_stream(device)
    endless = device.launch(0, stream, kernel(2, 1 << 56))
    ops = [device.launch(0, stream, grid) for grid in grids]
    device.advance(at_ns)
    assert not device.is_done(endless)
    device.cut(at_ns, endless)
    device.cut(at_ns, ops[-1])  # still queued, or running by now
    assert device.is_done(endless)
    assert device.check() is None
    run_out(device)
    assert all(device.is_done(op) for op in ops)


@given(held=st.integers(1, 3), blocks=st.integers(1, 12), block_ns=st.integers(1, 5000), share_group=st.booleans())
def test_hung_kernel_leaves_others_their_slices_or_the_remaining_sms(
    held: int, blocks: int, block_ns: int, share_group: bool
) -> None:
    """A client of its group gets the remaining SMs; another group gets all SMs in every other slice."""
    device = Device(tiny(4), LIMITS)
    _, hung = open_stream(device, 1)
    _, stream = open_stream(device, 1 if share_group else OWN_GROUP)
    endless = device.launch(0, hung, kernel(held, 1 << 56))
    op = device.launch(0, stream, kernel(blocks, block_ns))
    done_ns = device.project_ns(op)
    assert done_ns is not None
    if share_group:
        assert done_ns == -(-blocks // (4 - held)) * block_ns
    else:
        alone_ns = -(-blocks // 4) * block_ns
        assert alone_ns <= done_ns - device.config.slice_ns <= 2 * alone_ns
    device.advance(done_ns)
    assert device.is_done(op)
    assert not device.is_done(endless)
