"""Reader of TensorRT's engine profiles: duration of each layer of an engine.

Source: NVIDIA/TensorRT, tools/experimental/trt-engine-explorer (Apache-2.0). A layer is a kernel here.
"""

from __future__ import annotations

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY

_NS_PER_MS = 1_000_000


class _Row(msgspec.Struct):
    name: str = ""
    average_ms: float = msgspec.field(name="averageMs", default=0.0)


def read_layers(content: bytes, where: str) -> tuple[tuple[str, int], ...]:
    """Return name and nanoseconds of every layer that takes time, in the order they run."""
    try:
        rows = msgspec.json.decode(content, type=list[_Row])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(error), REMEDY, where=where) from None
    layers = tuple((row.name, round(row.average_ms * _NS_PER_MS)) for row in rows if 0 < row.average_ms < 1e6)
    if not layers:
        raise ConfigError("file", len(rows), f"has no layer that takes time; {REMEDY}", where=where)
    return layers
