"""Slowdown of requests with their queue, from the slowdown of one request.

Requests arrive at random, are served one at a time and take equally long (M/D/1). Longer requests also wait longer for
each other, the more so the higher the load: at a load of 0.8, requests that take 4 % longer have latencies that are
20 % longer. A limit of the latency must therefore allow less interference at high load.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

FULL: Final = 0.98
"""Highest load of a service alone; more counts as this."""
_OVERLOAD: Final = 0.999
"""Highest load with slower requests: above it queues grow without bound, and this one stands for that."""


def queued_slowdown(slower: Any, load: Any) -> Any:
    """Return latencies with queueing over those alone at the same load, elementwise.

    `slower`: duration of a request over that alone; `load`: part of the time with a request active when alone.
    """
    alone = np.minimum(load, FULL)
    active = np.minimum(alone * slower, _OVERLOAD)
    return slower * (1 + active / (2 * (1 - active))) / (1 + alone / (2 * (1 - alone)))
