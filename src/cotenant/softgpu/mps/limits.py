"""Text forms of MPS limits: percentages and pinned memory per device, and their effect on a GPU."""

from __future__ import annotations

import re
from typing import Final

from cotenant.errors import ConfigError

FULL: Final = 100.0
_NUMBER: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{0,6})?")
_SIZE: Final = re.compile(r"([0-9]{1,9})([GMgm])[Bb]?")
_UNITS: Final = {"G": 1 << 30, "M": 1 << 20}
_DEVICE: Final = re.compile(r"[0-9]{1,4}|GPU-[0-9a-fA-F-]{1,40}")


def parse_percentage(text: str, *, field: str) -> float:
    """Return an active thread percentage: above 0, at most 100."""
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0.0 < value <= FULL:
        raise ConfigError(field, text, "a percentage is a number above 0 and at most 100")
    return value


def parse_memory(text: str, *, field: str) -> int:
    """Return a pinned memory limit in bytes, from "10G", "900M", or with a trailing B."""
    match = _SIZE.fullmatch(text)
    if not match or int(match[1]) == 0:
        raise ConfigError(field, text, 'a limit is a whole number with G or M behind it, like "10G"')
    return int(match[1]) * _UNITS[match[2].upper()]


def show_memory(limit_bytes: int) -> str:
    """Return a memory limit as text: in gigabytes if whole, otherwise in megabytes; 0 for no limit."""
    for unit, unit_bytes in _UNITS.items():
        if limit_bytes and limit_bytes % unit_bytes == 0:
            return f"{limit_bytes // unit_bytes}{unit}"
    return "0"


def parse_device(text: str, *, field: str) -> str:
    """Return a device in MPS's notation: an ordinal, or a prefix of an identity."""
    if not _DEVICE.fullmatch(text):
        raise ConfigError(field, text, 'a device is a number, or an identity that begins with "GPU-"')
    return text.lower() if text.startswith("GPU-") else str(int(text))


def parse_memory_list(text: str, *, field: str) -> dict[str, int]:
    """Return the limits of several devices, from "0=1G,1=512MB"; the last entry for a device counts."""
    limits: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        device, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(field, text, 'limits are written "0=1G,1=512M"')
        limits[parse_device(device.strip(), field=field)] = parse_memory(value.strip(), field=field)
    return limits


def limit_of(limits: dict[str, int], ordinal: int, identity: str) -> int:
    """Return the limit of one device in a list; 0 for none."""
    for device, limit_bytes in limits.items():
        if device == str(ordinal) or (not device.isdecimal() and identity.lower().startswith(device)):
            return limit_bytes
    return 0


def share_of(sm_count: int, percentage: float) -> int:
    """Return the SMs at this percentage: rounded down, as NVIDIA documents, but at least one. 0: all of them."""
    return 0 if percentage >= FULL else max(1, int(sm_count * percentage / FULL))
