"""The knee of a curve of latency against share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KNEE_SLACK: Final = 0.10
"""A latency this far above the lowest one of its curve counts as equal."""


def knee_pct(latency_by_share: Mapping[int, float], slack: float = KNEE_SLACK) -> int:
    """Return the smallest share (percent) whose latency is at most (1 + slack) times the lowest latency of the curve.

    One outlier above the lowest latency moves it little, whereas "the share from which latency stays low" would
    follow the last outlier of a noisy curve.
    """
    if not latency_by_share:
        raise ValueError("a curve without points has no knee")
    enough = (1 + slack) * min(latency_by_share.values())
    return min(share for share, latency in latency_by_share.items() if latency <= enough)
