"""Quantities of the Kubernetes API ("3000", "3k", "2Gi") as whole numbers, and numbers and names in annotations.

The syntax is that of k8s.io/apimachinery/pkg/api/resource. The API server rewrites a quantity in its shortest form
before it calls a webhook, so that `nvidia.com/gpumem: 3000` arrives as "3k".
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from cotenant.errors import ConfigError

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]{1,30}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
    r"(?P<unit>|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})",
    re.ASCII,
)
_UNITS: Final = {
    "": Decimal(1),
    "n": Decimal(1).scaleb(-9),
    "u": Decimal(1).scaleb(-6),
    "m": Decimal(1).scaleb(-3),
    **{unit: Decimal(10) ** (3 * power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_LARGEST: Final = (1 << 63) - 1
NAME_LIMIT: Final = 128
"""Characters of a profile, a group, or a name to avoid."""
_NAMES_LIMIT: Final = 64
_DIGITS: Final = 10
"""Digits of a whole number. An annotation may have more than Python converts, which is 4,300."""


def whole_quantity(value: Any, field: str, remedy: str) -> int:
    """Return a quantity that must be a whole number of at least 0."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(field, value, remedy)
    unit = match["unit"]
    scale = Decimal(10) ** int(unit[1:]) if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei" else _UNITS[unit]
    exact = Decimal(match["number"]) * scale
    if match["sign"] == "-" and exact:
        raise ConfigError(field, value, f"must not be negative; {remedy}")
    if exact > _LARGEST or exact != exact.to_integral_value():
        raise ConfigError(field, value, remedy)
    return int(exact)


def whole_number(text: str, field: str, least: int, most: int) -> int:
    """Return a number of decimal digits that must be in a range, as annotations have it."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else -1
    if not least <= number <= most:
        raise ConfigError(field, text, f"write a whole number from {least} to {most}")
    return number


def name_list(text: str, field: str) -> tuple[str, ...]:
    """Return names that an annotation lists with commas."""
    parts = tuple(part.strip() for part in text.split(","))
    if len(parts) > _NAMES_LIMIT or not all(1 <= len(part) <= NAME_LIMIT for part in parts):
        remedy = f"write at most {_NAMES_LIMIT} names of at most {NAME_LIMIT} characters, separated by commas"
        raise ConfigError(field, text, remedy)
    return parts
