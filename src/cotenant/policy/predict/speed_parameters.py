"""Which model of speed is in use, and how sure is it? A file of the package, written by `cotenant lab predictor`.

The file is as much a constant as a table in a module would be: it is read once, and nothing but the lab writes it.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Final

import msgspec

from cotenant.domain.value import Value
from cotenant.errors import InvariantError
from cotenant.policy.predict.speed_model import FEATURES, Model

VERSION: Final = 1
FILE: Final = "speed_parameters.json"


class WayParameters(Value, frozen=True):
    """For one way of sharing a GPU."""

    model: Model
    doubt: tuple[float, float]
    """In logarithms, for speed and for slowdown, times how much slowing there is."""


class Parameters(Value, frozen=True, kw_only=True):
    """All that was fitted, and from what."""

    version: int
    made_by: str
    kind: str
    """Of the models that were tried, the one that was kept."""
    seed: int
    pairs: int
    """On the software GPU, fitted to; of each way."""
    features: tuple[str, ...]
    ways: dict[str, WayParameters]


@functools.cache
def kept_parameters() -> Parameters:
    """Those of this version of the package."""
    content = importlib.resources.files(__package__).joinpath(FILE).read_bytes()
    found = msgspec.json.decode(content, type=Parameters)
    if found.version != VERSION or found.features != FEATURES:
        raise InvariantError(f"{FILE} is of another version: make it anew with `cotenant lab predictor --parameters`")
    return found
