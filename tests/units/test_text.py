"""Text with a unit has one value, and each value has one text."""

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import (
    LARGEST,
    format_duration,
    format_share,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
)

DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
BINARY_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZES = {**BINARY_SIZES, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
PARSERS: dict[str, Callable[..., int]] = {"duration": parse_duration, "size": parse_size, "share": parse_share}

# Any number, and those that people write: round ones with few digits.
amounts = st.one_of(
    st.integers(0, LARGEST),
    st.builds(
        lambda digits, scale: min(digits * scale, LARGEST),
        st.integers(0, 9999),
        st.sampled_from([*DURATIONS.values(), *SIZES.values()]),
    ),
)


def spellings(amount: int, units: dict[str, int]) -> list[str]:
    """Return every text of at least half a unit with at most three decimals that means exactly this amount."""
    texts = []
    for unit, scale in units.items():
        thousandths, rest = divmod(amount * 1000, scale)
        if rest == 0 and thousandths >= 500:
            texts.append(f"{thousandths // 1000}.{thousandths % 1000:03}".rstrip("0").rstrip(".") + unit)
    return texts


@given(amounts)
@example(LARGEST)
@example(0)
def test_durations_and_sizes_round_trip(amount: int) -> None:
    assert parse_duration(format_duration(amount)) == amount
    assert parse_size(format_size(amount)) == amount


@given(st.integers(0, WHOLE_PPM))
@example(WHOLE_PPM)
@example(1)
def test_shares_round_trip(share_ppm: int) -> None:
    assert parse_share(format_share(share_ppm)) == share_ppm


@given(amounts.filter(bool))
def test_text_is_the_shortest_of_its_value(amount: int) -> None:
    assert format_duration(amount) == min(spellings(amount, DURATIONS), key=len)
    assert format_size(amount) == min(spellings(amount, BINARY_SIZES), key=len)


@given(st.integers(0, 10**6), st.integers(0, 9), st.sampled_from(sorted({**DURATIONS, **SIZES})))
def test_parsed_value_has_one_text(number: int, decimals: int, unit: str) -> None:
    parse, format_ = (parse_duration, format_duration) if unit in DURATIONS else (parse_size, format_size)
    text = f"{Decimal(number).scaleb(-decimals):f}{unit}"
    try:
        amount = parse(text)
    except ConfigError as error:
        assert "more digits" in error.remedy or "too large" in error.remedy  # noqa: PT017  both results are correct
    else:
        assert Decimal(amount) == Decimal(number).scaleb(-decimals) * {**DURATIONS, **SIZES}[unit]
        assert format_(parse(format_(amount))) == format_(amount)


@pytest.mark.parametrize(
    "amount, text",
    [
        (0, "0s"),
        (50 * 10**6, "50ms"),
        (10**9, "1s"),
        (15 * 10**8, "1.5s"),
        (60 * 10**9, "60s"),
        (7200 * 10**9, "2h"),
        (7, "7ns"),
    ],
)
def test_common_durations_format_and_parse(amount: int, text: str) -> None:
    assert (format_duration(amount), parse_duration(text)) == (text, amount)


@pytest.mark.parametrize(
    "amount, text",
    [(0, "0B"), (4 << 30, "4GiB"), (512 << 20, "512MiB"), (1023, "1023B"), (3 << 39, "1.5TiB")],
)
def test_common_sizes_format_and_parse(amount: int, text: str) -> None:
    assert (format_size(amount), parse_size(text)) == (text, amount)


@pytest.mark.parametrize(
    "share, text", [(0, "0%"), (300_000, "30%"), (125_000, "12.5%"), (10**6, "100%"), (1, "0.0001%")][:]
)
def test_common_shares_format_and_parse(share: int, text: str) -> None:
    assert (format_share(share), parse_share(text)) == (text, share)


def test_whitespace_is_accepted() -> None:
    assert parse_duration(" 50 ms\n") == 50 * 10**6
    assert parse_size("4GB") == 4 * 10**9


INVALID_NUMBERS = [
    "",
    " ",
    "-5",
    "nan",
    "inf",
    "1e3",
    "0x10",
    ".5",
    "5.",
    "1,5",
    "1_000",
    "--",
    "ms",
    "GiB",
    "%",
    "1" * 21,
]
UNITS = {"duration": ["ms", "s", "d"], "size": ["B", "GiB", "TB"], "share": ["%"]}
WRONG_TYPES: list[object] = [None, 5, 5.0, True, b"5s", ["5s"], {"s": 5}]


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("number", INVALID_NUMBERS)
def test_invalid_number_is_refused_with_any_unit(kind: str, number: str) -> None:
    for unit in ["", *UNITS[kind]]:
        rejection_of(kind, number + unit if number != unit else number)


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("unit", ["", " ", "x", "S", "MS", "Gib", "gb", "sec", "µs", "%%", "m", "\uff05"])
def test_invalid_unit_is_refused(kind: str, unit: str) -> None:
    rejection_of(kind, f"5{unit}")


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("digit", ["\N{ARABIC-INDIC DIGIT FIVE}", "\N{FULLWIDTH DIGIT FIVE}", "\N{SUPERSCRIPT TWO}"])
def test_digits_of_other_scripts_are_refused(kind: str, digit: str) -> None:
    rejection_of(kind, digit + UNITS[kind][0])


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("value", WRONG_TYPES, ids=repr)
def test_value_that_is_not_text_is_refused(kind: str, value: object) -> None:
    rejection_of(kind, value)


@pytest.mark.parametrize(
    "kind, text, remedy",
    [
        ("duration", f"{LARGEST + 1}ns", "too large"),
        ("duration", "106752d", "too large"),
        ("size", "8388608TiB", "too large"),
        ("size", "99999999999999999999.999999999TiB", "too large"),
        ("share", "100.0001%", "0%"),
        ("share", "99999999999999999999%", "too large"),
        ("duration", "0.5ns", "more digits"),
        ("size", "0.1KiB", "more digits"),
        ("share", "0.00001%", "more digits"),
        ("duration", f"{LARGEST}.999999999ns", "more digits"),
    ],
)
def test_value_out_of_range_is_refused(kind: str, text: str, remedy: str) -> None:
    assert remedy in rejection_of(kind, text).remedy


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in PARSERS.values():
        try:
            assert 0 <= parse(text) <= LARGEST
        except ConfigError as error:
            assert error.value == text  # noqa: PT017  both results are correct


def rejection_of(kind: str, value: object) -> ConfigError:
    """Return the error, which must name the field, the value and a remedy."""
    with pytest.raises(ConfigError) as caught:
        PARSERS[kind](value, field="node.some_field")
    error = caught.value
    assert (error.field, error.value) == ("node.some_field", value)
    assert error.remedy
    assert str(error).startswith("node.some_field = ")
    return error
