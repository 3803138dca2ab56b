"""Costs and contention of a software or simulated GPU: `ideal` has none, `hardware` those of measured GPUs.

Sources of `hardware`:

- cache and DRAM contention: fitted to half of iGniter's pairs on a V100 by `cotenant-lab study device`, which judges
  them on the other half.
- issue slots: half of the slots of an SM suffice to use all its issue slots, and a kernel that uses the whole bandwidth
  needs half of them. Orion (EuroSys 2024, table 2) measured for two kernels at once, relative to one after the other:
  two convolutions 0.98, two batch normalizations 1.08, one of each 1.41; this law gives 1.0, 1.1 and 1.4.
- clocks: our choice. iGniter measured that clocks fall when co-located work reaches the power limit, but its published
  pairs do not separate this from the caches.
- priorities: half of the kernels overtake. Tally (ASPLOS 2025) measured 99th percentile latencies of services next to
  training on an A100: 345 % longer under MPS, 195 % with MPS client priorities.
- a switch between processes: between the extremes in the literature (10 to 500 us).
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.softgpu.sim.device import DeviceConfig, preset
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS


class DeviceCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What sharing costs on the device, beyond what a kernel costs alone; rate.c of the device model has the law."""

    switch_ns: int = 10 * MICROSECOND_NS
    """Idle time when another process is switched in."""
    slice_ns: int = 2 * MILLISECOND_NS
    """Time slice while several processes have work."""
    issue_full_ppm: int = 0
    """Part of an SM's slots that, when filled, uses all its issue slots; 0: no contention for issue slots."""
    cache_contention_ppm: int = 0
    """Slowdown by other kernels, in L2 and on the way to it."""
    dram_contention_ppm: int = 0
    """Additional slowdown when others use the whole memory bandwidth."""
    clock_drop_ppm: int = 0
    """Fall of the clocks at full power."""
    priority_effect_ppm: int = 1_000_000
    """Part of the kernels that overtake those of clients of lower priority."""

    def applied(self, config: DeviceConfig) -> DeviceConfig:
        """Return the device with these costs."""
        return msgspec.structs.replace(config, **msgspec.structs.asdict(self))


IDEAL: Final = DeviceCosts()
HARDWARE: Final = DeviceCosts(
    switch_ns=100 * MICROSECOND_NS,
    issue_full_ppm=500_000,
    cache_contention_ppm=70_000,
    dram_contention_ppm=30_000,
    clock_drop_ppm=100_000,
    priority_effect_ppm=500_000,
)


def hardware(key: str) -> DeviceConfig:
    """Return a preset with the `hardware` costs."""
    return HARDWARE.applied(preset(key))
