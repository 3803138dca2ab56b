"""Online share and delay budget are equivalent, and the shares of peers sum to the whole."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.policy.limit.share import MIN_ONLINE_PPM, PeerTenant, delay_of, divided, share_of, shares_among
from cotenant.units.share import WHOLE_PPM

online_shares = st.integers(MIN_ONLINE_PPM, WHOLE_PPM)


def test_example_shares_and_delay_budgets() -> None:
    assert [delay_of(ppm) for ppm in (WHOLE_PPM, 500_000, 250_000, 200_000)] == [0, 1_000_000, 3_000_000, 4_000_000]
    assert [share_of(ppm) for ppm in (0, 20_000, 1_000_000, 3_000_000)] == [WHOLE_PPM, 980_392, 500_000, 250_000]
    assert delay_of(0) == delay_of(MIN_ONLINE_PPM) == 99_000_000
    assert share_of(10**12) == MIN_ONLINE_PPM


@given(online_shares)
def test_share_of_a_delay_budget_is_the_original_share(online_ppm: int) -> None:
    assert abs(share_of(delay_of(online_ppm)) - online_ppm) <= 1


@given(online_shares, online_shares)
def test_larger_share_has_a_smaller_delay_budget(first: int, second: int) -> None:
    assert (first <= second) == (delay_of(first) >= delay_of(second)) or first == second


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 2 * WHOLE_PPM), max_size=20))
def test_divided_shares_fill_the_device_and_follow_the_needs(needs: dict[int, int]) -> None:
    shares = divided(needs)
    if len(needs) < 2:
        assert shares == ()
        return
    assert [slot for slot, _ in shares] == sorted(needs)
    assert WHOLE_PPM - len(needs) <= sum(ppm for _, ppm in shares) <= WHOLE_PPM
    assert all(ppm >= WHOLE_PPM // (10 * len(needs)) for _, ppm in shares)
    share_of_slot = dict(shares)
    ascending = sorted(needs, key=lambda slot: needs[slot])
    assert all(share_of_slot[smaller] <= share_of_slot[larger] for smaller, larger in itertools.pairwise(ascending))


def test_peers_divide_what_user_set_shares_leave() -> None:
    reserved = PeerTenant(0, 1, 2, True, 600_000)
    others = [PeerTenant(slot, 1, 2, True) for slot in (1, 2)]
    needs = dict.fromkeys(range(4), 300_000)
    assert shares_among([reserved, *others], needs) == ((1, 200_000), (2, 200_000))
    higher = PeerTenant(3, 1, 1, True, 600_000)
    assert shares_among([higher, *others], needs) == ((1, 500_000), (2, 500_000)), (
        "a tenant of another priority is no peer"
    )
    offline = PeerTenant(3, 1, 2, False, 200_000)
    assert shares_among([reserved, *others, offline], needs) == ((1, 100_000), (2, 100_000))
    assert shares_among([reserved, others[0]], needs) == (), "a single tenant gets the remainder without a share"


def test_fully_reserved_device_is_not_divided() -> None:
    reserved = PeerTenant(0, 1, 2, True, WHOLE_PPM)
    assert shares_among([reserved, *(PeerTenant(slot, 1, 2, True) for slot in (1, 2))], {0: 1, 1: 1, 2: 1}) == ()


def test_unknown_need_counts_as_the_mean_of_the_others() -> None:
    peers = [PeerTenant(slot, 1, 2, True) for slot in range(3)]
    shares = dict(shares_among(peers, {0: 100_000, 1: 300_000, 2: 0}))
    assert shares[0] < shares[2] < shares[1]
    assert shares_among(peers[:2], {0: 0, 1: 0}) == ((0, 500_000), (1, 500_000))
