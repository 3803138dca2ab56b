"""What do HAMi's variables ask for? They are another way to write a tenant's memory and share.

The names and the way of reading them are those of HAMi-core (src/multiprocess/multiprocess_memory_limit.c): a number as
C's `strtoul` reads it in base 0, a suffix of k, m or g in either case for powers of 1,024, and the variable with the
number of a device before the one without. A tenant sees one device, so that its number is 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cotenant.errors import ConfigError
from cotenant.format.quantity import LARGEST

MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
SHARE: Final = "CUDA_DEVICE_SM_LIMIT"
_FIRST: Final = "_0"
_NUMBER: Final = re.compile(r"\s*(?P<number>0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})(?P<unit>[kKmMgG]?)\s*", re.ASCII)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_WHOLE: Final = 100
_PPM_PER_PERCENT: Final = 10_000


class Wish(NamedTuple):
    """What a variable asks for."""

    variable: str
    amount: int


def memory_of(environ: Mapping[str, str]) -> Wish | None:
    """Device memory in bytes; None where nothing asks for a limit."""
    remedy = 'write bytes, or a number with k, m or g, as in "4096m"'
    for name in (MEMORY + _FIRST, MEMORY):
        amount = _number(name, environ.get(name, ""), remedy)
        if amount:
            return Wish(name, amount)
    return None


def share_of(environ: Mapping[str, str]) -> Wish | None:
    """Share of the GPU in millionths; None where nothing asks for less than all of it."""
    remedy = "write a percentage without a unit, from 0 to 100 (0 and 100: no limit)"
    for name in (SHARE + _FIRST, SHARE):
        percent = _number(name, environ.get(name, ""), remedy)
        if percent > _WHOLE:
            raise ConfigError(name, environ[name], remedy)
        if percent:
            return Wish(name, percent * _PPM_PER_PERCENT) if percent < _WHOLE else None
    return None


def _number(name: str, text: str, remedy: str) -> int:
    if not text:
        return 0
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ConfigError(name, text, remedy)
    digits = found["number"]
    try:
        octal = digits[0] == "0" and digits.isdigit()
        amount = int(digits, 8 if octal else 0) * _UNITS[found["unit"].lower()]
    except ValueError:  # 08 and 09 are no numbers to strtoul either
        raise ConfigError(name, text, remedy) from None
    if amount > LARGEST:
        raise ConfigError(name, text, f"is too large; {remedy}")
    return amount
