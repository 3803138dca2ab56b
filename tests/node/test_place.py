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


# name: the rooms, whom spread chooses, whom pack chooses
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
def test_each_policy_chooses(name: str) -> None:
    rooms, spread, pack = CHOICES[name]
    chosen = {policy: min(rooms, key=rank).index for policy, (rank, _) in place.POLICIES.items()}
    assert chosen == {"spread": spread, "pack": pack, "predict": spread}


rooms = st.lists(
    st.builds(
        GpuCapacity,
        st.just(0),
        st.integers(-5, 5),
        st.integers(-2, 2).map(lambda n: n * WHOLE_PPM // 2),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [GpuCapacity(index, *_rest(one)) for index, one in enumerate(found)])


def _rest(one: GpuCapacity) -> tuple[int, int, int]:
    return one.memory_free_bytes, one.share_free_ppm, one.tenants


@given(rooms)
def test_spread_takes_the_most_free_share(found: list[GpuCapacity]) -> None:
    best = min(found, key=place.POLICIES["spread"].rank)
    assert best.share_free_ppm == max(one.share_free_ppm for one in found)
    alike = [one for one in found if one.share_free_ppm == best.share_free_ppm]
    assert best.memory_free_bytes == max(one.memory_free_bytes for one in alike)


@given(rooms)
def test_pack_takes_the_most_tenants(found: list[GpuCapacity]) -> None:
    best = min(found, key=place.POLICIES["pack"].rank)
    assert best.tenants == max(one.tenants for one in found)
    assert best.share_free_ppm == min(one.share_free_ppm for one in found if one.tenants == best.tenants)


@pytest.mark.parametrize("policy", place.POLICIES)
@given(found=rooms, shuffle=st.randoms(use_true_random=False))
def test_the_choice_has_no_ties_and_no_order(policy: str, found: list[GpuCapacity], shuffle: random.Random) -> None:
    rank = place.POLICIES[policy].rank
    assert len({rank(one) for one in found}) == len(found)
    shuffled = list(found)
    shuffle.shuffle(shuffled)
    assert min(shuffled, key=rank) == min(found, key=rank)


def test_the_config_knows_every_policy() -> None:
    for policy in place.POLICIES:
        assert decode_config(f"node.place = '{policy}'", "x").node.place == policy
    assert NodeConfig().place in place.POLICIES
