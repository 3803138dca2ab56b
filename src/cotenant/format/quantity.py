"""How do people write durations, sizes and shares? With a unit, always: "50ms", "4GiB", "30%".

What is printed parses back to exactly the same number: the shortest such text of at least 0.5 of its unit with at most
three decimals, and of two equally short ones the one in the smaller unit.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from cotenant.errors import ConfigError

_NUMBER: Final = re.compile(r"\s*(?P<number>[0-9]{1,20}(?:\.[0-9]{1,9})?)\s*(?P<unit>[A-Za-zµ%]*)\s*", re.ASCII)

_DURATION_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_SIZE_UNITS: Final = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_DECIMAL_SIZE_UNITS: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SHARE_UNITS: Final = {"%": 10**4}

LARGEST: Final = (1 << 63) - 1
"""Quantities live in signed 64-bit integers on the wire and in pages."""


def parse_duration(text: object, *, field: str = "duration") -> int:
    """Nanoseconds from text such as "50ms", "1.5s" or "2min"."""
    return _parse(text, field, _DURATION_UNITS, 'write a number and a unit, as in "50ms", "1.5s" or "2min"')


def format_duration(nanoseconds: int) -> str:
    """The shortest text that parses back to this many nanoseconds."""
    return _format(nanoseconds, _DURATION_UNITS, zero="0s")


def round_duration(nanoseconds: int) -> str:
    """About how long, in three digits: for tables that people read, not for reading back."""
    unit, scale = "ns", 1
    for name in ("us", "ms", "s"):
        if nanoseconds >= _DURATION_UNITS[name]:
            unit, scale = name, _DURATION_UNITS[name]
    return f"{nanoseconds / scale:.3g}{unit}" if nanoseconds < 1000 * scale else f"{nanoseconds / scale:,.0f}{unit}"


def parse_size(text: object, *, field: str = "size") -> int:
    """Bytes from text such as "4GiB" or "512MiB"; decimal units ("4GB") are understood too."""
    units = {**_SIZE_UNITS, **_DECIMAL_SIZE_UNITS}
    return _parse(text, field, units, 'write a number and a unit, as in "4GiB" or "512MiB"')


def format_size(size_bytes: int) -> str:
    """The shortest text that parses back to this many bytes."""
    return _format(size_bytes, _SIZE_UNITS, zero="0B")


def round_size(size_bytes: int) -> str:
    """About how much, in three digits: for people, not for reading back."""
    unit = "B"
    for name, scale in _SIZE_UNITS.items():
        if size_bytes >= scale:
            unit = name
    number = size_bytes / _SIZE_UNITS[unit]
    return f"{number:.3g}{unit}" if number < 1000 else f"{number:,.0f}{unit}"


def counted(number: int, noun: str) -> str:
    """So many of them, as it is said: "1 tenant", "2 tenants"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_share(text: object, *, field: str = "share") -> int:
    """Millionths from a percentage such as "30%" or "12.5%"."""
    remedy = 'write a percentage from "0%" to "100%", as in "30%"'
    share = _parse(text, field, _SHARE_UNITS, remedy)
    if share > 10**6:
        raise ConfigError(field, text, remedy)
    return share


def format_share(share_ppm: int) -> str:
    """A percentage that parses back to these millionths."""
    return _decimal_text(Decimal(share_ppm) / 10**4) + "%"


def round_share(share_ppm: int) -> str:
    """About which part, to a tenth of a percent: for people, not for reading back."""
    return f"{_decimal_text(round(Decimal(share_ppm) / 10**4, 1))}%"


def _parse(text: object, field: str, units: dict[str, int], remedy: str) -> int:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None or match["unit"] not in units:
        raise ConfigError(field, text, remedy)
    try:
        exact = Decimal(match["number"]) * units[match["unit"]]
    except InvalidOperation:
        raise ConfigError(field, text, remedy) from None
    whole = int(exact)
    if whole != exact:
        raise ConfigError(field, text, "is finer than the smallest unit, round it")
    if whole > LARGEST:
        raise ConfigError(field, text, "is too large, at most 2^63-1 of the smallest unit fit")
    return whole


def _format(amount: int, units: dict[str, int], *, zero: str) -> str:
    if amount == 0:
        return zero
    if amount < 0:
        return "-" + _format(-amount, units, zero=zero)
    candidates = []
    for unit, scale in units.items():
        number = Decimal(amount) / scale
        if number == round(number, 3) and int(number * scale) == amount and number >= Decimal("0.5"):
            candidates.append(_decimal_text(round(number, 3)) + unit)
    return min(candidates, key=len)


def _decimal_text(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
