"""Is a share of online work the same as what it may lose, and is what equals divide always a whole?"""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.policy.limit.share import LEAST_PPM, delay_of, divided, share_of

parts = st.integers(LEAST_PPM, WHOLE_PPM)


def test_known_shares() -> None:
    assert [delay_of(ppm) for ppm in (WHOLE_PPM, 500_000, 250_000, 200_000)] == [0, 1_000_000, 3_000_000, 4_000_000]
    assert [share_of(ppm) for ppm in (0, 20_000, 1_000_000, 3_000_000)] == [WHOLE_PPM, 980_392, 500_000, 250_000]
    assert delay_of(0) == delay_of(LEAST_PPM) == 99_000_000
    assert share_of(10**12) == LEAST_PPM


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
