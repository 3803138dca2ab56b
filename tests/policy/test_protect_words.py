"""Is what is told of protection whole: no sentence without an end, no more than there is room for?"""

from hypothesis import given
from hypothesis import strategies as some

from cotenant.domain.protect import WHY_LIMIT, clipped


@given(some.text(max_size=3 * WHY_LIMIT), some.integers(2, WHY_LIMIT))
def test_what_does_not_fit_says_so(text: str, limit: int) -> None:
    told = clipped(text, limit)
    assert len(told) <= limit
    if len(text) <= limit:
        assert told == text
    else:
        assert told.endswith("…")
        assert text.startswith(told[:-1])


def test_a_sentence_is_cut_after_a_word() -> None:
    assert clipped("it does not answer since", 20) == "it does not answer…"
    assert clipped("averyveryverylongname", 10) == "averyvery…"
