"""A slowed clock loses no work and keeps the books; a stopped client leaves nothing running and keeps its memory."""

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


def join(device: Device, group_label: int = OWN_GROUP) -> tuple[int, int]:
    """A client and a stream of its own."""
    client, context = open_client(device, group_label)
    return client, device.create_stream(0, context)


def play(
    work: list[tuple[int, int, Kernel]], changes: list[tuple[int, int]], labels: tuple[int, ...], **config: int
) -> tuple[Device, list[int], list[Record]]:
    """Three clients' kernels at their instants, the speed changed at others, until all is done."""
    device = Device(tiny(**config), LIMITS)
    people = [join(device, label) for label in labels]
    calls = [(at_ns, 0, index) for index, (at_ns, _) in enumerate(changes)]
    calls += [(at_ns, 1, index) for index, (_, at_ns, _) in enumerate(work)]
    for at_ns, is_launch, index in sorted(calls):
        if is_launch:
            who, _, grid = work[index]
            device.launch(at_ns, people[who][1], grid, tag=index)
        else:
            device.set_speed(at_ns, changes[index][1])
        assert device.check() is None
    return device, [client for client, _ in people], run_out(device)


@given(grid=KERNELS, changes=CHANGES)
def test_what_the_clock_gives_is_what_the_kernel_needs(grid: Kernel, changes: list[tuple[int, int]]) -> None:
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


@given(work=WORK, instants=st.lists(st.integers(0, 60000), max_size=8), together=st.booleans())
def test_full_speed_changes_nothing(work: list[tuple[int, int, Kernel]], instants: list[int], together: bool) -> None:
    labels = (1, 1, OWN_GROUP) if together else (OWN_GROUP,) * 3
    plain, _, expected = play(work, [], labels)
    touched, _, found = play(work, [(at_ns, FULL_SPEED) for at_ns in instants], labels)
    assert found == expected
    assert touched.count() == plain.count()


@given(work=WORK, changes=CHANGES, together=st.booleans())
def test_the_counters_add_up_at_any_speed(
    work: list[tuple[int, int, Kernel]], changes: list[tuple[int, int]], together: bool
) -> None:
    labels = (1, 1, OWN_GROUP) if together else (OWN_GROUP,) * 3
    device, people, records = play(work, changes, labels)
    assert len(records) == len(work)
    assert device.count().blocks == sum(grid.blocks for _, _, grid in work)
    assert device.count().traffic_bytes == sum(grid.blocks * grid.bytes_per_block for _, _, grid in work)
    for waiter in people:
        delayed_ns = device.count_client(waiter).delayed_ns
        assert delayed_ns == sum(device.delay_ns(waiter, culprit) for culprit in people)
        assert delayed_ns == sum(record.delayed_ns for record in records if record.client == waiter)


@given(work=WORK, halvings=st.integers(1, 3), together=st.booleans())
def test_a_slow_device_is_a_device_in_slow_motion(
    work: list[tuple[int, int, Kernel]], halvings: int, together: bool
) -> None:
    """With arrivals, slices and switches as much slower, everything happens that much later, to the nanosecond."""
    dry = [(who, at_ns, kernel(grid.blocks, grid.block_ns, grid.blocks_per_sm)) for who, at_ns, grid in work]
    labels = (1, 1, OWN_GROUP) if together else (OWN_GROUP,) * 3
    scale = 1 << halvings
    quick = play(dry, [], labels, slice_ns=3000, switch_ns=100)[2]
    stretched = [(who, at_ns * scale, grid) for who, at_ns, grid in dry]
    slow = play(stretched, [(0, FULL_SPEED // scale)], labels, slice_ns=3000 * scale, switch_ns=100 * scale)[2]
    assert [(r.tag, r.start_ns, r.end_ns) for r in slow] == [
        (r.tag, r.start_ns * scale, r.end_ns * scale) for r in quick
    ]


@given(work=WORK, at_ns=st.integers(0, 30000), together=st.booleans())
def test_a_stopped_client_is_dead_to_the_others_and_keeps_its_memory(
    work: list[tuple[int, int, Kernel]], at_ns: int, together: bool
) -> None:
    labels = (1, 1, OWN_GROUP) if together else (OWN_GROUP,) * 3
    seen = []
    for stops in (True, False):
        device = Device(tiny(), LIMITS)
        people = [join(device, label) for label in labels]
        context = device.create_context(0, people[0][0])
        device.take_memory(context, 1000)
        for who, when_ns, grid in sorted(work, key=lambda entry: entry[1]):
            if when_ns < at_ns:
                device.launch(when_ns, people[who][1], grid)
        (device.stop_client if stops else device.kill_client)(at_ns, people[0][0])
        assert device.check() is None
        assert device.config.memory_bytes - device.free_memory_bytes() == (1000 if stops else 0)
        others = [record for record in run_out(device) if record.client != people[0][0]]
        seen.append([(r.client, r.start_ns, r.end_ns, r.delayed_ns) for r in others])
        if stops:  # its stream still takes work
            op = device.launch(device.now_ns(), people[0][1], kernel(1, 10))
            run_out(device)
            assert device.is_done(op)
    assert seen[0] == seen[1]


@given(grids=st.lists(KERNELS, min_size=1, max_size=4), at_ns=st.integers(0, 20000))
def test_a_cut_kernel_is_over_and_the_next_one_begins(grids: list[Kernel], at_ns: int) -> None:
    device = Device(tiny(), LIMITS)
    _, stream = join(device)
    endless = device.launch(0, stream, kernel(2, 1 << 56))
    ops = [device.launch(0, stream, grid) for grid in grids]
    device.advance(at_ns)
    assert not device.is_done(endless)
    device.cut(at_ns, endless)
    device.cut(at_ns, ops[-1])  # further behind, or running by now
    assert device.is_done(endless)
    assert device.check() is None
    run_out(device)
    assert all(device.is_done(op) for op in ops)


@given(held=st.integers(1, 3), blocks=st.integers(1, 12), block_ns=st.integers(1, 5000), together=st.booleans())
def test_a_hung_kernel_leaves_others_its_slices_or_the_rest_of_the_sms(
    held: int, blocks: int, block_ns: int, together: bool
) -> None:
    """Beside it a client of its group has the SMs that it left; another group has all of them, every other slice."""
    device = Device(tiny(4), LIMITS)
    _, hung = join(device, 1)
    _, stream = join(device, 1 if together else OWN_GROUP)
    endless = device.launch(0, hung, kernel(held, 1 << 56))
    op = device.launch(0, stream, kernel(blocks, block_ns))
    done_ns = device.project_ns(op)
    assert done_ns is not None
    if together:
        assert done_ns == -(-blocks // (4 - held)) * block_ns
    else:
        alone_ns = -(-blocks // 4) * block_ns
        assert alone_ns <= done_ns - device.config.slice_ns <= 2 * alone_ns
    device.advance(done_ns)
    assert device.is_done(op)
    assert not device.is_done(endless)
