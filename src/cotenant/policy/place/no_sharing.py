"""No sharing: GPUs on which there is no online work, and those only."""

from __future__ import annotations

from cotenant.policy.place.in_turn import Free, in_turn
from cotenant.policy.place.round import Planned, Round


def no_sharing(given: Round) -> Planned:
    """First fit among them."""
    return in_turn(given, Free(given, given.possible & (given.gpu_kinds.online == 0)))
