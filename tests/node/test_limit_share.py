"""Online share and delay budget are equivalent, and the shares of peers sum to the whole."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.policy.limit.share import MIN_ONLINE_PPM, PeerTenant, delay_of, divided, share_of, shares_among
from cotenant.units.share import WHOLE_PPM

parts = st.integers(MIN_ONLINE_PPM, WHOLE_PPM)


def test_known_shares() -> None:
    assert [delay_of(ppm) for ppm in (WHOLE_PPM, 500_000, 250_000, 200_000)] == [0, 1_000_000, 3_000_000, 4_000_000]
    assert [share_of(ppm) for ppm in (0, 20_000, 1_000_000, 3_000_000)] == [WHOLE_PPM, 980_392, 500_000, 250_000]
    assert delay_of(0) == delay_of(MIN_ONLINE_PPM) == 99_000_000
    assert share_of(10**12) == MIN_ONLINE_PPM


@given(parts)
def test_there_and_back(online_ppm: int) -> None:
    assert abs(share_of(delay_of(online_ppm)) - online_ppm) <= 1


@given(parts, parts)
def test_who_keeps_more_loses_less(one: int, other: int) -> None:
    assert (one <= other) == (delay_of(one) >= delay_of(other)) or one == other


@given(st.dictionaries(st.integers(0, 99), st.integers(0, 2 * WHOLE_PPM), max_size=20))
def test_what_equals_divide(needs: dict[int, int]) -> None:
    shares = divided(needs)
    if len(needs) < 2:
        assert shares == ()
        return
    assert [slot for slot, _ in shares] == sorted(needs)
    assert WHOLE_PPM - len(needs) <= sum(ppm for _, ppm in shares) <= WHOLE_PPM
    assert all(ppm >= WHOLE_PPM // (10 * len(needs)) for _, ppm in shares)
    given_to = dict(shares)
    ascending = sorted(needs, key=lambda slot: needs[slot])
    assert all(given_to[one] <= given_to[other] for one, other in itertools.pairwise(ascending))


def test_whom_its_user_gave_a_share_keeps_it_and_the_others_divide_the_rest() -> None:
    promised = PeerTenant(0, 1, 2, True, 600_000)
    others = [PeerTenant(slot, 1, 2, True) for slot in (1, 2)]
    needs = dict.fromkeys(range(4), 300_000)
    assert shares_among([promised, *others], needs) == ((1, 200_000), (2, 200_000))
    above = PeerTenant(3, 1, 1, True, 600_000)
    assert shares_among([above, *others], needs) == ((1, 500_000), (2, 500_000)), "no equal of theirs"
    offline = PeerTenant(3, 1, 2, False, 200_000)
    assert shares_among([promised, *others, offline], needs) == ((1, 100_000), (2, 100_000))
    assert shares_among([promised, others[0]], needs) == (), "one alone gets what is left anyway"


def test_where_users_gave_everything_away_nothing_is_divided() -> None:
    promised = PeerTenant(0, 1, 2, True, WHOLE_PPM)
    assert shares_among([promised, *(PeerTenant(slot, 1, 2, True) for slot in (1, 2))], {0: 1, 1: 1, 2: 1}) == ()


def test_an_unknown_need_counts_as_the_mean_of_the_others() -> None:
    equals = [PeerTenant(slot, 1, 2, True) for slot in range(3)]
    shares = dict(shares_among(equals, {0: 100_000, 1: 300_000, 2: 0}))
    assert shares[0] < shares[2] < shares[1]
    assert shares_among(equals[:2], {0: 0, 1: 0}) == ((0, 500_000), (1, 500_000))
