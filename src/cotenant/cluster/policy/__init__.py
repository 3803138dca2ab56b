"""Placement policies of a cluster, by name."""

from __future__ import annotations

from typing import Final

from cotenant.cluster.policy.fragmentation import fragmentation
from cotenant.cluster.policy.greedy import greedy
from cotenant.cluster.policy.in_order import best_fit, first_fit, no_sharing, random_round, spread_round
from cotenant.cluster.policy.matching import by_match
from cotenant.cluster.policy.round import RoundPolicy

ROUNDS: Final[dict[str, RoundPolicy]] = {
    "match": RoundPolicy(by_match, is_safe=True),
    "greedy": RoundPolicy(greedy, is_safe=True),
    "first-fit": RoundPolicy(first_fit),
    "best-fit": RoundPolicy(best_fit),
    "spread": RoundPolicy(spread_round),
    "random": RoundPolicy(random_round),
    "fragmentation": RoundPolicy(fragmentation),
    "time-sharing": RoundPolicy(first_fit, mode="time"),
    "priority-time-sharing": RoundPolicy(first_fit, mode="priority"),
    "no-sharing": RoundPolicy(no_sharing, mode="none"),
}
"""The first is the default; the others are baselines."""

LIVE: Final = tuple(name for name, policy in ROUNDS.items() if policy.mode not in {"time", "priority"})
"""Policies of a live cluster. Its nodes share SMs by space, so a policy that assumes time sharing would only be first
fit."""
