"""Orion's kernel lists: what did each kernel of a request cost on a V100, in launch order?

Source: eth-easl/orion (MIT). Names contain commas, so fields are split from the right.
"""

from __future__ import annotations

import enum
from typing import Final

from cotenant.domain.value import Value
from cotenant.errors import ConfigError
from cotenant.format.measured.row import REMEDY, text_of, whole

_COLUMNS: Final = ["Name", "Profile", "Memory_footprint", "SM_usage", "Duration"]


class Bound(enum.IntEnum):
    """What holds a kernel up, as Orion classed it."""

    UNKNOWN = -1
    MEMORY = 0
    COMPUTE = 1


class MeasuredKernel(Value, frozen=True):
    """One kernel alone on the device: its SMs needed (may be more than there are) and its time."""

    name: str
    bound: Bound
    sms: int
    duration_ns: int


def read_stream(content: bytes, where: str) -> tuple[MeasuredKernel, ...]:
    """The kernels of one file, in launch order."""
    lines = text_of(content, where).splitlines()
    header = lines[0].rsplit(",", 4) if lines else []
    if header != _COLUMNS:
        raise ConfigError("header", ",".join(header), f"should be {','.join(_COLUMNS)}; {REMEDY}", where=f"{where}:1")
    kernels = []
    for index, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        place = f"{where}:{index}"
        cells = line.rsplit(",", 4)
        if len(cells) != len(_COLUMNS):
            raise ConfigError("row", line, f"should have {len(_COLUMNS)} fields; {REMEDY}", where=place)
        name, profile, _, sms, duration = cells
        kernels.append(
            MeasuredKernel(
                name=name,
                bound=Bound(whole(profile, "Profile", place, least=-1, most=1)),
                sms=max(1, whole(sms, "SM_usage", place, least=0)),
                duration_ns=whole(duration, "Duration", place, least=1),
            )
        )
    if not kernels:
        raise ConfigError("rows", 0, f"should be at least one; {REMEDY}", where=where)
    return tuple(kernels)
