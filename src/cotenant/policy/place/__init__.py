"""Which GPU? Of the devices that admission accepts, the one of the lowest cost, then of the lowest rank, wins."""

from __future__ import annotations

from typing import Final

from cotenant.policy.place.choice import PlacePolicy
from cotenant.policy.place.pack import pack
from cotenant.policy.place.predict import weigh
from cotenant.policy.place.spread import spread

POLICIES: Final[dict[str, PlacePolicy]] = {
    "spread": PlacePolicy(spread),
    "pack": PlacePolicy(pack),
    "predict": PlacePolicy(spread, weigh),
}
