"""How is a model's profile written? One JSON file for each model and device, which says what it was measured with."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.domain.instant import Duration
from cotenant.domain.runtimes import RunTime, RunTimes
from cotenant.errors import ConfigError

VERSION: Final = 1


class Profiled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the runs of one model took on one device."""

    model: str
    """Its name when it was measured; the file is found by its hash."""
    model_hash: str
    device: str
    """The device and what ran the model, in words; another device has another profile."""
    times: RunTimes
    """While the rest of the device ran the same, as under load."""
    alone: tuple[RunTime, ...]
    """While the rest of the device was idle."""
    percent: bool
    """Whether a unit is a percent of a GPU, not a core."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """The shapes that one row was measured with."""
    runs: int
    spent_ns: Duration
    made_unix_ns: int
    knee_by_model_units: int
    """By the analytical model fitted to the times alone."""
    model_error: float
    """Of that model, the median relative error at the points it was fitted to."""
    version: int = VERSION


_DECODER: Final = msgspec.json.Decoder(Profiled)  # made here: several threads that load models must not all make it


def encode_profiled(profiled: Profiled) -> bytes:
    """As it is kept."""
    return msgspec.json.format(msgspec.json.encode(profiled), indent=1)


def decode_profiled(data: bytes, where: str) -> Profiled:
    """As it was kept; what is not a profile is a ConfigError."""
    try:
        found = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise ConfigError("profile", where, f"is no profile of a model: {error}; remove it and profile again") from None
    cells = (*found.times.times, *found.alone)
    sound = all(
        0 < one.typical_ns <= one.high_ns and one.rows > 0 and 0 < one.units <= found.times.all_units for one in cells
    )
    if found.version != VERSION or not found.times.times or not sound:
        raise ConfigError("profile", where, "is of another version or damaged; remove it and profile again")
    return found
