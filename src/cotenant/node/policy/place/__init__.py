"""Place policies: of the admissible devices, the one with the lowest cost, then the lowest rank, is chosen."""

from __future__ import annotations

from typing import Final

from cotenant.node.policy.place.choice import PlacePolicy
from cotenant.node.policy.place.pack import pack
from cotenant.node.policy.place.predict import score
from cotenant.node.policy.place.spread import spread

POLICIES: Final[dict[str, PlacePolicy]] = {
    "spread": PlacePolicy(spread),
    "pack": PlacePolicy(pack),
    "predict": PlacePolicy(spread, score),
}
