"""Messages of protection are complete sentences within their limits."""

from hypothesis import given
from hypothesis import strategies as some

from cotenant.node.model.protection import WHY_LIMIT, clipped


@given(some.text(max_size=3 * WHY_LIMIT), some.integers(2, WHY_LIMIT))
def test_clipped_text_ends_with_an_ellipsis(text: str, limit: int) -> None:
    result = clipped(text, limit)
    assert len(result) <= limit
    if len(text) <= limit:
        assert result == text
    else:
        assert result.endswith("…")
        assert text.startswith(result[:-1])


def test_text_is_clipped_after_a_word() -> None:
    assert clipped("it does not answer since", 20) == "it does not answer…"
    assert clipped("averyveryverylongname", 10) == "averyvery…"
