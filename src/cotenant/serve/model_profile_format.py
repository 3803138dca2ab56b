"""File format of a model's profile: one JSON file for each model and device."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.serve.model.run_times import RunTime, RunTimes
from cotenant.units.instant import Duration

VERSION: Final = 1


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured run times of one model on one device."""

    model: str
    """The model's name at the time of the measurement; profiles are looked up by the model's hash."""
    model_hash: str
    device: str
    """The device and the runtime, as text; a profile holds for this device only."""
    times: RunTimes
    """Times while other runs used the rest of the device."""
    alone: tuple[RunTime, ...]
    """Times while the rest of the device was idle."""
    percent: bool
    """Whether a unit is one percent of a GPU; otherwise a unit is a core."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """The input shapes of one row during the measurement."""
    runs: int
    spent_ns: Duration
    made_unix_ns: int
    knee_by_model_units: int
    """Knee of the analytical model that was fitted to the times alone."""
    model_error: float
    """Median relative error of that model at the points it was fitted to."""
    version: int = VERSION


_DECODER: Final = msgspec.json.Decoder(
    ModelProfile
)  # created at import, because several threads load models at the same time


def encode_model_profile(profile: ModelProfile) -> bytes:
    """Encode a profile as JSON."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1)


def decode_model_profile(data: bytes, where: str) -> ModelProfile:
    """Decode a profile; raise ConfigError if the data is not a profile."""
    try:
        profile = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise ConfigError("profile", where, f"is not a model profile: {error}; remove it and profile again") from None
    cells = (*profile.times.times, *profile.alone)
    valid = all(
        0 < cell.typical_ns <= cell.high_ns and cell.rows > 0 and 0 < cell.units <= profile.times.all_units
        for cell in cells
    )
    if profile.version != VERSION or not profile.times.times or not valid:
        raise ConfigError("profile", where, "has another version or is damaged; remove it and profile again")
    return profile
