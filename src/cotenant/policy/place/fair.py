"""How much more do the jobs of a user count who had little?"""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.policy.place.round import Array

LEAST: Final = 0.5
MOST: Final = 2.0
"""A user who had nothing counts at most four times as much as one who had all: what a pair makes of a GPU is not to be
forgotten over who asks."""


def lifts(received: Array, weight: Array) -> Array:
    """Of each user: GPU time received so far, and weight. 1 for who had what is due, more for less, less for more."""
    received, weight = np.asarray(received, np.float64), np.asarray(weight, np.float64)
    due = received.sum() / max(1.0, weight.sum())
    if due <= 0:
        return np.ones(len(received), np.float32)
    return np.clip(2 * due / (due + received / weight), LEAST, MOST).astype(np.float32)
