"""The place policies: tables of examples, then properties of any capacities."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.config.file import NodeConfig, decode_config
from cotenant.node.model.gpu import GpuCapacity
from cotenant.node.policy import place
from cotenant.units.share import WHOLE_PPM

GIB = 1 << 30


def capacity(index: int, memory_gib: int, share_percent: int, tenants: int) -> GpuCapacity:
    return GpuCapacity(index, memory_gib * GIB, share_percent * 10_000, tenants)


# name: the capacities, the device that spread chooses, the device that pack chooses
CHOICES = {
    "all alike: the lowest index": ([capacity(0, 16, 100, 0), capacity(1, 16, 100, 0)], 0, 0),
    "more free share": ([capacity(0, 16, 50, 1), capacity(1, 16, 100, 1)], 1, 0),
    "share before memory": ([capacity(0, 1, 100, 1), capacity(1, 16, 99, 1)], 0, 1),
    "memory when shares are equal": ([capacity(0, 8, 50, 1), capacity(1, 16, 50, 1)], 1, 0),
    "tenants when all else is equal": ([capacity(0, 8, 50, 2), capacity(1, 8, 50, 1)], 1, 0),
    "tenants before share for pack": ([capacity(0, 8, 10, 1), capacity(1, 8, 90, 2)], 1, 1),
    "an empty device": ([capacity(0, 8, 90, 3), capacity(1, 8, 100, 0)], 1, 0),
    "an overbooked device": ([capacity(0, -8, -10, 3), capacity(1, 0, 0, 3)], 1, 0),
    "in any order": ([capacity(2, 8, 50, 1), capacity(0, 8, 50, 1), capacity(1, 8, 50, 1)], 0, 0),
}


@pytest.mark.parametrize("name", CHOICES)
def test_each_policy_chooses_the_expected_device(name: str) -> None:
    capacities, spread, pack = CHOICES[name]
    chosen = {policy: min(capacities, key=rank).index for policy, (rank, _) in place.POLICIES.items()}
    assert chosen == {"spread": spread, "pack": pack, "predict": spread}


capacities = st.lists(
    st.builds(
        GpuCapacity,
        st.just(0),
        st.integers(-5, 5),
        st.integers(-2, 2).map(lambda n: n * WHOLE_PPM // 2),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
).map(lambda devices: [GpuCapacity(index, *_free_and_tenants(device)) for index, device in enumerate(devices)])


def _free_and_tenants(device: GpuCapacity) -> tuple[int, int, int]:
    return device.memory_free_bytes, device.share_free_ppm, device.tenants


@given(capacities)
def test_spread_takes_the_most_free_share(devices: list[GpuCapacity]) -> None:
    best = min(devices, key=place.POLICIES["spread"].rank)
    assert best.share_free_ppm == max(device.share_free_ppm for device in devices)
    alike = [device for device in devices if device.share_free_ppm == best.share_free_ppm]
    assert best.memory_free_bytes == max(device.memory_free_bytes for device in alike)


@given(capacities)
def test_pack_takes_the_most_tenants(devices: list[GpuCapacity]) -> None:
    best = min(devices, key=place.POLICIES["pack"].rank)
    assert best.tenants == max(device.tenants for device in devices)
    assert best.share_free_ppm == min(device.share_free_ppm for device in devices if device.tenants == best.tenants)


@pytest.mark.parametrize("policy", place.POLICIES)
@given(devices=capacities, shuffle=st.randoms(use_true_random=False))
def test_choice_is_unique_and_independent_of_the_order(
    policy: str, devices: list[GpuCapacity], shuffle: random.Random
) -> None:
    rank = place.POLICIES[policy].rank
    assert len({rank(device) for device in devices}) == len(devices)
    shuffled = list(devices)
    shuffle.shuffle(shuffled)
    assert min(shuffled, key=rank) == min(devices, key=rank)


def test_config_accepts_every_policy() -> None:
    for policy in place.POLICIES:
        assert decode_config(f"node.place = '{policy}'", "x").node.place == policy
    assert NodeConfig().place in place.POLICIES
