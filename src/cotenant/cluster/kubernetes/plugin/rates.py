"""The speed of offline tenants relative to their speed alone, from the time that their launches wait at the gate.

A program whose launches waited for 6 of 10 seconds would have needed 4 seconds alone, so its speed is 40 %. Launches of
several threads and launches that a program issues ahead wait while earlier work of the same tenant runs; the speed is
therefore at least the part of the time that the tenant's own work took on the device. Kernels that run at the same time
as those of other tenants may also be slower: the gate does not measure that, and the speed does not contain it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cotenant.gate.activity import GateCounts
from cotenant.units.instant import SECOND_NS, Instant
from cotenant.units.share import WHOLE_PPM

WINDOW_NS: Final = 10 * SECOND_NS
"""The shortest time over which a speed is measured."""
_STEP_PPM: Final = 50_000
"""Speeds are reported in such steps: a report that equals the last one is not written."""

TenantKey = tuple[int, int]
"""Slot and generation."""


class TenantRates:
    """Measures one speed after the other for each offline tenant."""

    def __init__(self) -> None:
        """Begin without tenants."""
        self._begun: dict[TenantKey, tuple[GateCounts, Instant]] = {}
        self._rates: dict[TenantKey, int] = {}

    def observe(self, key: TenantKey, counts: GateCounts, *, is_paused: bool, now: Instant) -> int:
        """Return the latest speed of a tenant in millionths of its speed alone; 0: none was measured yet.

        A tenant that launches nothing, or that is paused, has no speed; time in which it was paused is not measured.
        """
        begun = self._begun.get(key)
        if begun is None or is_paused:
            self._begun[key] = (counts, now)
            return 0 if is_paused else self._rates.get(key, 0)
        before, then = begun
        if now - then >= WINDOW_NS:
            self._begun[key] = (counts, now)
            self._rates[key] = _rate_ppm(before, counts, now - then)
        return self._rates.get(key, 0)

    def keep(self, keys: Collection[TenantKey]) -> None:
        """Forget the tenants that are not among these."""
        self._begun = {key: begun for key, begun in self._begun.items() if key in keys}
        self._rates = {key: rate_ppm for key, rate_ppm in self._rates.items() if key in keys}


def _rate_ppm(before: GateCounts, after: GateCounts, elapsed_ns: int) -> int:
    if after.launches <= before.launches:
        return 0
    waited_ns = after.waited_ns - before.waited_ns
    device_ns = after.device_ns - before.device_ns
    part = max(elapsed_ns - waited_ns, min(device_ns, elapsed_ns)) / elapsed_ns
    return max(_STEP_PPM, min(WHOLE_PPM, round(part * WHOLE_PPM / _STEP_PPM) * _STEP_PPM))
