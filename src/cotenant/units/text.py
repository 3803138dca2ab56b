"""Text forms of durations, sizes and shares, always with a unit: "50ms", "4GiB", "30%".

Formatted text parses back to exactly the same number. It is the shortest text that is at least 0.5 of its unit and has
at most three decimals; of two equally short texts, the one in the smaller unit.
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
_OTHER_SIZE_UNITS: Final = {
    **{f"{prefix}i": 1 << (10 * power) for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("KMGT", 1)},
    **{prefix: 10 ** (3 * power) for power, prefix in enumerate("KMGT", 1)},
}
"""Further spellings, as in Kubernetes: Ki, Mi, Gi and Ti are powers of 1024, and K, KB, M, MB ... powers of 1000."""
_SHARE_UNITS: Final = {"%": 10**4}

LARGEST: Final = (1 << 63) - 1
"""Quantities are signed 64-bit integers on the wire and in shared pages."""


def parse_duration(text: object, *, field: str = "duration") -> int:
    """Return nanoseconds from text such as "50ms", "1.5s" or "2min"."""
    return _parse(text, field, _DURATION_UNITS, 'write a number and a unit, as in "50ms", "1.5s" or "2min"')


def format_duration(nanoseconds: int) -> str:
    """Return the shortest text that parses back to this many nanoseconds."""
    return _format(nanoseconds, _DURATION_UNITS, zero="0s")


def round_duration(nanoseconds: int) -> str:
    """Return a duration rounded to three digits, for tables; it does not parse back exactly."""
    unit, scale = "ns", 1
    for name in ("us", "ms", "s"):
        if nanoseconds >= _DURATION_UNITS[name]:
            unit, scale = name, _DURATION_UNITS[name]
    return f"{nanoseconds / scale:.3g}{unit}" if nanoseconds < 1000 * scale else f"{nanoseconds / scale:,.0f}{unit}"


def parse_size(text: object, *, field: str = "size") -> int:
    """Return the bytes of a text such as "4GiB" or "512MiB".

    "4GiB" and "4Gi" are 4 * 1024^3 bytes; "4GB" and "4G" are 4 * 1000^3 bytes, as in Kubernetes.
    """
    units = {**_SIZE_UNITS, **_OTHER_SIZE_UNITS}
    remedy = 'write a number and a unit, as in "4GiB" or "4Gi" (powers of 1024), "4GB" or "4G" (powers of 1000)'
    return _parse(text, field, units, remedy)


def format_size(size_bytes: int) -> str:
    """Return the shortest text that parses back to this many bytes."""
    return _format(size_bytes, _SIZE_UNITS, zero="0B")


def round_size(size_bytes: int) -> str:
    """Return a size rounded to three digits, for tables; it does not parse back exactly."""
    unit = "B"
    for name, scale in _SIZE_UNITS.items():
        if size_bytes >= scale:
            unit = name
    number = size_bytes / _SIZE_UNITS[unit]
    return f"{number:.3g}{unit}" if number < 1000 else f"{number:,.0f}{unit}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: "1 tenant", "2 tenants"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_share(text: object, *, field: str = "share") -> int:
    """Return millionths from a percentage such as "30%" or "12.5%"."""
    remedy = 'write a percentage from "0%" to "100%", as in "30%"'
    share = _parse(text, field, _SHARE_UNITS, remedy)
    if share > 10**6:
        raise ConfigError(field, text, remedy)
    return share


def format_share(share_ppm: int) -> str:
    """Return the percentage that parses back to these millionths."""
    return _decimal_text(Decimal(share_ppm) / 10**4) + "%"


def round_share(share_ppm: int) -> str:
    """Return a percentage rounded to a tenth, for tables; it does not parse back exactly."""
    return f"{_decimal_text(round(Decimal(share_ppm) / 10**4, 1))}%"


def _parse(text: object, field: str, units: dict[str, int], remedy: str) -> int:
    if isinstance(text, str) and text.lstrip().startswith("-") and _NUMBER.fullmatch(text.replace("-", "", 1)):
        raise ConfigError(field, text, f"must not be negative; {remedy}")
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None or match["unit"] not in units:
        raise ConfigError(field, text, remedy)
    try:
        exact = Decimal(match["number"]) * units[match["unit"]]
    except InvalidOperation:
        raise ConfigError(field, text, remedy) from None
    whole = int(exact)
    if whole != exact:
        raise ConfigError(field, text, "has more digits than the smallest unit allows; round it")
    if whole > LARGEST:
        raise ConfigError(field, text, "is too large; the limit is 2^63-1 of the smallest unit")
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
