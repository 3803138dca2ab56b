"""Contention between kernels that run together, and priorities that are only partly effective."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.softgpu.costs import HARDWARE, IDEAL, hardware
from cotenant.softgpu.sim.device import (
    Device,
    DeviceConfig,
    Kernel,
    ScriptClient,
    ScriptResult,
    Step,
    StreamKind,
    preset,
)
from tests.support.effort import examples

V100 = preset("v100")
US = 1000
LONG_NS = 100 * US
HALF = Kernel(blocks=40, block_ns=LONG_NS, blocks_per_sm=1)
"""Uses half of the SMs of a V100."""
WHOLE_TRAFFIC = 900 * LONG_NS // 40
"""Bytes per block with which 40 blocks ask for the whole bandwidth of a V100."""


def costs(**changes: int) -> DeviceConfig:
    return msgspec.structs.replace(V100, **changes)


def run(
    config: DeviceConfig, kernels: list[Kernel], *, caps: tuple[int, ...] = (0, 0), priorities: tuple[int, ...] = (0, 0)
) -> list[ScriptResult]:
    """Run one client per kernel in one MPS group; each launches and waits 40 times."""
    clients = [
        ScriptClient(
            steps=(Step(0, index), Step(0, None, sync=True)),
            repeats=40,
            group_label=1,
            sm_cap=caps[index],
            streams=((StreamKind.BLOCKING, priorities[index]),),
        )
        for index in range(len(kernels))
    ]
    device = Device(config)
    results = device.run(kernels, clients)
    assert device.check() is None
    return results


def slowdown(result: ScriptResult, alone_ns: int = LONG_NS) -> float:
    assert result.finished_ns is not None
    return result.finished_ns / 40 / alone_ns


def test_presets_have_no_contention_and_the_ideal_costs_change_nothing() -> None:
    assert IDEAL.device.applied(V100) == V100
    assert [slowdown(result) for result in run(V100, [HALF, HALF])] == [1.0, 1.0]


def test_a_kernel_alone_has_its_full_rate_with_any_contention() -> None:
    busy = msgspec.structs.replace(HALF, blocks=80, bytes_per_block=WHOLE_TRAFFIC // 2)
    assert slowdown(run(msgspec.structs.replace(hardware("v100"), launch_ns=0), [busy])[0]) == 1.0


def test_others_in_the_caches_slow_a_kernel_by_a_constant_and_by_their_traffic() -> None:
    config = costs(cache_contention_ppm=100_000, dram_contention_ppm=200_000)
    assert [slowdown(result) for result in run(config, [HALF, HALF])] == pytest.approx([1.1, 1.1], rel=1e-4)
    small = msgspec.structs.replace(HALF, blocks=8)  # a tenth of the SMs: half of the constant
    assert [slowdown(result) for result in run(config, [HALF, small])] == pytest.approx([1.05, 1.1], rel=0.01)
    mover = msgspec.structs.replace(HALF, bytes_per_block=WHOLE_TRAFFIC // 2)
    assert [slowdown(result) for result in run(config, [HALF, mover])] == pytest.approx([1.2, 1.1], rel=0.02)


def test_kernels_that_share_sms_share_their_issue_slots() -> None:
    config = costs(issue_full_ppm=500_000)
    half_of_slots = Kernel(blocks=160, block_ns=LONG_NS, blocks_per_sm=4)  # two of four slots of every SM
    assert [slowdown(result) for result in run(config, [half_of_slots] * 2)] == pytest.approx([2.0, 2.0], rel=1e-3)
    assert [slowdown(result) for result in run(config, [HALF, HALF])] == [1.0, 1.0]  # one per SM: on other SMs
    split = run(config, [half_of_slots] * 2, caps=(40, 40))
    assert [slowdown(result) for result in split] == [1.0, 1.0]  # capped kernels have SMs of their own


def test_kernels_with_a_limit_have_sms_of_their_own() -> None:
    """As in a capped context, also in delays: half of the blocks at once, so twice as long, and no slower than that."""
    config = costs(issue_full_ppm=500_000, cache_contention_ppm=100_000)
    wide = Kernel(blocks=320, block_ns=LONG_NS, blocks_per_sm=4)
    limited = msgspec.structs.replace(wide, sm_cap=40)
    by_launch, by_context = run(config, [limited, limited]), run(config, [wide, wide], caps=(40, 40))
    assert [slowdown(result) for result in by_launch] == pytest.approx([2.2, 2.2], rel=1e-3)
    for launch, context in zip(by_launch, by_context, strict=True):
        assert (launch.ends_ns, launch.delays_ns) == (context.ends_ns, context.delays_ns)


def test_clocks_fall_when_the_device_draws_more_power_than_the_kernel_alone() -> None:
    config = costs(clock_drop_ppm=100_000)
    mover = msgspec.structs.replace(HALF, bytes_per_block=WHOLE_TRAFFIC // 2)
    expected = 1 / (1 - 0.1 * (0.7 + 0.3 - 0.75) / 0.25)
    assert [slowdown(result) for result in run(config, [mover, mover])] == pytest.approx([expected] * 2, rel=1e-3)
    assert [slowdown(result) for result in run(config, [HALF, HALF])] == [1.0, 1.0]  # below the free power


def test_delays_by_contention_are_counted_and_attributed() -> None:
    config = costs(cache_contention_ppm=100_000)
    first, second = run(config, [HALF, HALF])
    assert sum(first.delays_ns) == pytest.approx(40 * LONG_NS * 0.1, rel=0.01)
    assert sum(second.delays_ns) == pytest.approx(40 * LONG_NS * 0.1, rel=0.01)


@pytest.mark.parametrize("effect_pct", [0, 25, 50, 100])
def test_the_configured_part_of_kernels_overtakes(effect_pct: int) -> None:
    """The first client always has ten waves queued; a kernel that overtakes waits for one, another for all."""
    config = costs(priority_effect_ppm=effect_pct * 10_000)
    wide = Kernel(blocks=800, block_ns=10 * US, blocks_per_sm=1)
    clients = [
        ScriptClient(steps=(Step(0, 0),) * 40, group_label=1, streams=((StreamKind.BLOCKING, 0),)),
        ScriptClient(
            steps=(Step(15 * US, 1), Step(0, None, sync=True)),
            repeats=20,
            group_label=1,
            streams=((StreamKind.BLOCKING, -1),),
        ),
    ]
    result = Device(config).run([wide, Kernel(blocks=80, block_ns=10 * US, blocks_per_sm=1)], clients)[1]
    quick = sum(delay_ns <= 10 * US for delay_ns in result.delays_ns)
    assert quick == 20 * effect_pct // 100


KERNELS = st.builds(
    Kernel,
    blocks=st.integers(1, 400),
    block_ns=st.integers(1, 20).map(lambda us: us * US),
    bytes_per_block=st.integers(0, 40_000),
    blocks_per_sm=st.sampled_from([1, 2, 8]),
)


@settings(max_examples=examples(30, 1000))
@given(kernels=st.lists(KERNELS, min_size=2, max_size=3), doubled=st.booleans())
def test_contention_only_slows_and_conserves_work(kernels: list[Kernel], *, doubled: bool) -> None:
    config = msgspec.structs.replace(hardware("v100"), launch_ns=0)
    if doubled:
        config = msgspec.structs.replace(config, cache_contention_ppm=2 * int(HARDWARE.device.cache_contention))
    ideal, real = Device(V100), Device(config)
    clients = [
        ScriptClient(steps=(Step(0, index), Step(0, None, sync=True)), repeats=3, group_label=1)
        for index in range(len(kernels))
    ]
    last_ideal = max(result.finished_ns or 0 for result in ideal.run(kernels, clients))
    last_real = max(result.finished_ns or 0 for result in real.run(kernels, clients))
    assert real.check() is None
    assert (real.count().kernels, real.count().blocks) == (ideal.count().kernels, ideal.count().blocks)
    assert real.count().traffic_bytes == ideal.count().traffic_bytes
    assert last_real >= 0.99 * max(result.block_ns for result in kernels) * 3
    assert last_real <= 4 * last_ideal + 1000
