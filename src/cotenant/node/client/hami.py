"""HAMi's environment variables as the memory and share of a tenant.

Names and syntax are those of HAMi-core (src/multiprocess/multiprocess_memory_limit.c): a number as
C's `strtoul` reads it in base 0, a suffix of k, m or g in either case for powers of 1,024, and the variable with the
number of a device before the one without. A tenant sees one device, so that its number is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.config.file import RunConfig
from cotenant.units.text import LARGEST, format_share, format_size
from cotenant.units.toml import ShareOfWhole, SizeBytes

MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
SHARE: Final = "CUDA_DEVICE_SM_LIMIT"
_FIRST_DEVICE: Final = "_0"
_NUMBER: Final = r"(?a)\s*(?P<number>0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})(?P<unit>[kKmMgG]?)\s*"
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_WHOLE_PERCENT: Final = 100
_PPM_PER_PERCENT: Final = 10_000


class HamiLimit(NamedTuple):
    """The value of a variable."""

    variable: str
    amount: int


def apply_hami_limits(
    config: RunConfig, flags: Collection[tuple[str, str]], environ: Mapping[str, str], report: Callable[[str], None]
) -> RunConfig:
    """Return the config with memory and share from the environment; report which variables are used."""
    memory, share = memory_of(environ), share_of(environ)
    if memory is not None:
        if config.memory or ("run", "memory") in flags:
            report(f"{memory.variable} is set too: --memory {format_size(config.memory)} is used")
        else:
            report(f"memory {format_size(memory.amount)} by {memory.variable}")
            config = msgspec.structs.replace(config, memory=SizeBytes(memory.amount))
    if share is not None:
        if config.share or ("run", "share") in flags:
            report(f"{share.variable} is set too: --share {format_share(config.share)} is used")
        else:
            report(f"share {format_share(share.amount)} by {share.variable}")
            config = msgspec.structs.replace(config, share=ShareOfWhole(share.amount))
    return config


def memory_of(environ: Mapping[str, str]) -> HamiLimit | None:
    """Return the device memory in bytes; None if no variable sets a limit."""
    remedy = 'write bytes, or a number with k, m or g, as in "4096m"'
    for name in (MEMORY + _FIRST_DEVICE, MEMORY):
        amount = _number(name, environ.get(name, ""), remedy)
        if amount:
            return HamiLimit(name, amount)
    return None


def share_of(environ: Mapping[str, str]) -> HamiLimit | None:
    """Return the share of the GPU in millionths; None if no variable asks for less than the whole."""
    remedy = "write a percentage without a unit, from 0 to 100 (0 and 100: no limit)"
    for name in (SHARE + _FIRST_DEVICE, SHARE):
        percent = _number(name, environ.get(name, ""), remedy)
        if percent > _WHOLE_PERCENT:
            raise ConfigError(name, environ[name], remedy)
        if percent:
            return HamiLimit(name, percent * _PPM_PER_PERCENT) if percent < _WHOLE_PERCENT else None
    return None


def _number(name: str, text: str, remedy: str) -> int:
    if not text:
        return 0
    match = re.fullmatch(_NUMBER, text)
    if match is None:
        raise ConfigError(name, text, remedy)
    digits = match["number"]
    try:
        octal = digits[0] == "0" and digits.isdecimal()
        amount = int(digits, 8 if octal else 0) * _UNITS[match["unit"].lower()]
    except ValueError:  # strtoul does not accept 08 and 09 either
        raise ConfigError(name, text, remedy) from None
    if amount > LARGEST:
        raise ConfigError(name, text, f"is too large; {remedy}")
    return amount
