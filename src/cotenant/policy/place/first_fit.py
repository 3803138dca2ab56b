"""First fit: the first GPU that no constraint is against, whatever is foretold."""

from __future__ import annotations

from cotenant.policy.place.in_turn import Free, in_turn
from cotenant.policy.place.round import Planned, Round


def first_fit(given: Round) -> Planned:
    """By the order of GPUs."""
    return in_turn(given, Free(given, given.possible))
