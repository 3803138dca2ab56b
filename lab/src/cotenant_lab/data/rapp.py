"""Reader of RaPP: latency of a model on a V100 by batch, SM share and time quota.

Source: KontonGu/RaPP (Apache-2.0).
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final, TypeAlias

from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, number, table_rows, whole

_COLUMNS: Final = ("model", "batch", "sm_pct", "time_quota_pct", "latency_ms")

CurveName: TypeAlias = tuple[str, int]
"""Model and batch."""
Surface: TypeAlias = dict[CurveName, dict[int, dict[int, float]]]
"""By curve, then time quota (percent), then SM share (percent): the latency in milliseconds."""


def read_surface(packed: bytes, where: str) -> Surface:
    """Return the whole surface, in the order of the file; a repeated point is an error."""
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("file", str(error), f"is not a complete gzip file; {REMEDY}", where=where) from None
    surface: Surface = {}
    for location, (model, batch, share, quota, latency) in table_rows(content, _COLUMNS, where):
        curve = (model, whole(batch, "batch", location, least=1))
        shares = surface.setdefault(curve, {}).setdefault(
            whole(quota, "time_quota_pct", location, least=1, most=100), {}
        )
        share_pct = whole(share, "sm_pct", location, least=1, most=100)
        if share_pct in shares:
            raise ConfigError("sm_pct", share_pct, f"occurs twice for {model}; {REMEDY}", where=location)
        shares[share_pct] = number(latency, "latency_ms", location, least=1e-6, most=1e9)
    return surface
