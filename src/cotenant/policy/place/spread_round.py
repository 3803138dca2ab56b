"""Spread: the node with the most GPUs that are free, so that offline jobs meet as late as possible."""

from __future__ import annotations

import numpy as np

from cotenant.policy.place.in_turn import Free, in_turn
from cotenant.policy.place.round import Planned, Round


def spread_round(given: Round) -> Planned:
    """GPUs are put in the order in which they go if each job takes one of the emptiest node."""
    nodes = given.gpus.node
    places = np.arange(len(nodes))
    first = np.searchsorted(nodes, nodes)
    left = np.searchsorted(nodes, nodes, side="right") - places  # with it, as long as those before it are taken
    return in_turn(given, Free(given, given.possible, np.lexsort((first, -left))))
