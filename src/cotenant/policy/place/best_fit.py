"""Best fit: the GPU of which the least is left over."""

from __future__ import annotations

import numpy as np

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.policy.place.in_turn import Free, in_turn
from cotenant.policy.place.round import Planned, Round


def best_fit(given: Round) -> Planned:
    """Share and memory count alike, each as a part of the most that there is of it.

    Too little of a share is as bad as too much; a job of which nothing is known takes the least that is on offer.
    """
    offer, memory = given.gpu_kinds.offer_ppm, given.gpu_kinds.free_bytes
    share_left = np.abs(offer - given.job_kinds.need_ppm[:, None]) / WHOLE_PPM
    memory_left = (memory - given.job_kinds.memory_bytes[:, None]) / max(1, memory.max(initial=0))
    return in_turn(given, Free(given, given.possible, cost=share_left + memory_left))
