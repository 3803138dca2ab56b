"""Random: any GPU that no constraint is against, by lot."""

from __future__ import annotations

import numpy as np

from cotenant.policy.place.in_turn import Free, in_turn
from cotenant.policy.place.round import Planned, Round


def random_round(given: Round) -> Planned:
    """The seed decides."""
    order = np.random.default_rng(given.seed).permutation(len(given.gpus.kind))
    return in_turn(given, Free(given, given.possible, order))
