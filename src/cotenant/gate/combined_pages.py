"""Combine the gate pages of a tenant's processes into one, as if one process had done all of their work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

Page: TypeAlias = Mapping[str, int | list[int]]
"""A gate page by the field names of native/gate/pages.h."""
_SUMS: Final = frozenset(
    (
        *(
            "sequence",
            "kernel_count",
            "active_ns",
            "launches",
            "device_ns",
            "filled_ns",
            "waits",
            "waited_ns",
            "spun_ns",
        ),
        *("slept_ns", "overruns", "overrun_ns", "admitted", "submitted", "late", "late_ns", "stale", "forecasts"),
        *("early", "miss_ns", "confirmed", "stuck", "requests_ended", "requests_over", "requests_sum_ns", "lost_ns"),
        *("loss_reports", "delayed_ns", "undelayed_ns", "measured_waits", "used_ns", "min_share_used_ns"),
        *("cut_launches", "parts"),
    )
)
_SUMMED_LISTS: Final = frozenset(("passed", "overrun", "waited", "whole_launches", "request_buckets"))
_MAX_WORD: Final = (1 << 63) - 1
"""A process may publish any number; sums are limited to what every reader accepts."""


def combine(pages: Iterable[Page], generation: int) -> dict[str, int | list[int]]:
    """Return the sums of all counters and the latest of all instants, with this generation; empty without pages.

    Of the requests in progress, the oldest counts.
    """
    combined: dict[str, int | list[int]] = {}
    for page in pages:
        if not combined:
            combined.update(page)
            continue
        for name, value in page.items():
            combined[name] = _join(name, combined[name], value) if name in combined else value
    if combined:
        combined["generation"] = generation
    return combined


def counters_of(page: Page) -> dict[str, int | list[int]]:
    """Return a page with its counters only: what remains of a process that has ended."""
    return {name: value if name in _SUMS or name in _SUMMED_LISTS else _zero(value) for name, value in page.items()}


def _zero(value: int | list[int]) -> int | list[int]:
    return [0] * len(value) if isinstance(value, list) else 0


def _join(name: str, one: int | list[int], other: int | list[int]) -> int | list[int]:
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=True)
        return [min(a + b, _MAX_WORD) if name in _SUMMED_LISTS else max(a, b) for a, b in pairs]
    if not isinstance(one, int) or not isinstance(other, int):
        return one
    if name == "requests_began_ns":
        return min(one, other) if one and other else one or other
    return min(one + other, _MAX_WORD) if name in _SUMS else max(one, other)
