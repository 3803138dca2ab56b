"""Who goes where, for a whole cluster at once? Every way to plan a round, by its name."""

from __future__ import annotations

from typing import Final

from cotenant.policy.place.best_fit import best_fit
from cotenant.policy.place.by_match import by_match
from cotenant.policy.place.first_fit import first_fit
from cotenant.policy.place.fragmentation import fragmentation
from cotenant.policy.place.greedy import greedy
from cotenant.policy.place.no_sharing import no_sharing
from cotenant.policy.place.random_round import random_round
from cotenant.policy.place.round import RoundPolicy
from cotenant.policy.place.spread_round import spread_round

ROUNDS: Final[dict[str, RoundPolicy]] = {
    "match": RoundPolicy(by_match, is_safe=True),
    "greedy": RoundPolicy(greedy, is_safe=True),
    "first-fit": RoundPolicy(first_fit),
    "best-fit": RoundPolicy(best_fit),
    "spread": RoundPolicy(spread_round),
    "random": RoundPolicy(random_round),
    "fragmentation": RoundPolicy(fragmentation),
    "time-sharing": RoundPolicy(first_fit, way="time"),
    "priority-time-sharing": RoundPolicy(first_fit, way="priority"),
    "no-sharing": RoundPolicy(no_sharing, way="none"),
}
"""The first is what a cluster has unless it is told otherwise; the others are what it is compared with."""

LIVE: Final = tuple(name for name, policy in ROUNDS.items() if policy.way not in {"time", "priority"})
"""What a live cluster may be told: its nodes share space, so that what goes by turns would be first fit by another
name."""
