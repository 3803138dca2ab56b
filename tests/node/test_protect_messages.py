"""Messages of protection are complete sentences within their limits."""

from hypothesis import given
from hypothesis import strategies as some

from cotenant.node.model.protection import WHY_LIMIT, clipped


@given(some.text(max_size=3 * WHY_LIMIT), some.integers(2, WHY_LIMIT))
def test_what_does_not_fit_says_so(text: str, limit: int) -> None:
    reported = clipped(text, limit)
    assert len(reported) <= limit
    if len(text) <= limit:
        assert reported == text
    else:
        assert reported.endswith("…")
        assert text.startswith(reported[:-1])


def test_a_sentence_is_cut_after_a_word() -> None:
    assert clipped("it does not answer since", 20) == "it does not answer…"
    assert clipped("averyveryverylongname", 10) == "averyvery…"
