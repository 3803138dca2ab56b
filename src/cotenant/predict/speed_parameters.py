"""Parameters of the speed models, read from speed_parameters.json, which `cotenant-lab study predictor` writes."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Final

import msgspec

from cotenant.errors import InvariantError
from cotenant.predict.speed_model import FEATURES, Model, SharingLaw
from cotenant.units.value import Value

VERSION: Final = 3
FILE: Final = "speed_parameters.json"


class ModeParameters(Value, frozen=True):
    """Model of one sharing mode."""

    model: Model
    law: SharingLaw
    doubt: float
    """Half width of the intervals in logarithms, scaled with the slowdown."""


class Parameters(Value, frozen=True, kw_only=True):
    """All fitted parameters, and the origin of the fit."""

    version: int
    made_by: str
    kind: str
    """Kind of model that was selected."""
    seed: int
    pairs: int
    """Pairs on the software GPU in the fit of each mode."""
    features: tuple[str, ...]
    modes: dict[str, ModeParameters]


@functools.cache
def load_parameters() -> Parameters:
    """Return the parameters that come with the package."""
    content = importlib.resources.files(__package__).joinpath(FILE).read_bytes()
    parameters = msgspec.json.decode(content, type=Parameters)
    if parameters.version != VERSION or parameters.features != FEATURES:
        raise InvariantError(f"{FILE} has another version: create it with `cotenant-lab study predictor --parameters`")
    return parameters
