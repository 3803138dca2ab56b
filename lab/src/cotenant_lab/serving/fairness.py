"""Fairness index."""

from __future__ import annotations

from collections.abc import Sequence


def jain(parts: Sequence[float]) -> float:
    """Return Jain's index: 1 if all are equal, 1/n if one has all; 0 if all are zero."""
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 0.0
