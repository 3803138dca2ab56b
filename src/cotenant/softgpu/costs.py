"""Costs and contention of a software or simulated GPU: `ideal` has none, `hardware` those of measured GPUs.

Sources of `hardware`:

- cache and DRAM contention: fitted to half of iGniter's pairs on a V100 by `cotenant-lab study device`, which judges
  them on the other half.
- issue slots: our choice. Half of the slots of an SM suffice to use all its issue slots, and a kernel that uses the
  whole bandwidth needs half of them.
- clocks: our choice. iGniter measured that clocks fall when co-located work reaches the power limit, but its published
  pairs do not separate this from the caches.
- priorities: our choice. Half of the kernels overtake; published measurements of MPS client priorities range from
  hardly any effect to most of it.
- a switch between processes: between the extremes in the literature (10 to 500 us).
- driver calls 2 us, launch latency 3 us, event record and query 2 and 1 us, event resolution 500 ns (documented for
  cuEventElapsedTime), a clock drift of 20 ppm, NVML values 300 ms old and averaged over a second: our choices, of the
  size that users report.

- durations that depend on data: a spread of 2 %, our choice; programs whose inputs differ in size have much more,
  which their images and workloads state themselves.

Only the device model, the software driver and its NVML receive these values. Hook, gate and node do not.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.softgpu.sim.device import DeviceConfig, preset
from cotenant.softgpu.sim.host import Costs
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS
from cotenant.units.toml import Count, DurationNs, Section, ShareOfWhole, decode_toml

_MAX_SWITCH_NS: Final = 100 * MILLISECOND_NS
_MAX_CALL_NS: Final = MILLISECOND_NS
_MIN_SLICE_NS: Final = 10 * MICROSECOND_NS
_MAX_CONTENTION_PPM: Final = 4_000_000
_MAX_CLOCK_DROP_PPM: Final = 500_000
_MAX_DATA_SPREAD_PPM: Final = 300_000
_WHOLE_PPM: Final = 1_000_000


class DeviceCosts(Section, frozen=True, kw_only=True):
    """What sharing costs on the device, beyond what a kernel costs alone; rate.c of the device model has the law."""

    switch: DurationNs = DurationNs(10 * MICROSECOND_NS)
    """Idle time when another process is switched in."""
    slice: DurationNs = DurationNs(2 * MILLISECOND_NS)
    """Time slice while several processes have work."""
    launch: DurationNs = DurationNs(0)
    """From the submission of a kernel or copy to its earliest start."""
    issue_full: ShareOfWhole = ShareOfWhole(0)
    """Part of an SM's slots that, when filled, uses all its issue slots; 0: no contention for issue slots."""
    cache_contention: ShareOfWhole = ShareOfWhole(0)
    """Slowdown by other kernels, in L2 and on the way to it."""
    dram_contention: ShareOfWhole = ShareOfWhole(0)
    """Additional slowdown when others use the whole memory bandwidth."""
    clock_drop: ShareOfWhole = ShareOfWhole(0)
    """Fall of the clocks at full power."""
    priority_effect: ShareOfWhole = ShareOfWhole(_WHOLE_PPM)
    """Part of the kernels that overtake those of clients of lower priority."""

    def applied(self, config: DeviceConfig) -> DeviceConfig:
        """Return the device with these costs."""
        return msgspec.structs.replace(
            config,
            switch_ns=int(self.switch),
            slice_ns=int(self.slice),
            launch_ns=int(self.launch),
            issue_full_ppm=int(self.issue_full),
            cache_contention_ppm=int(self.cache_contention),
            dram_contention_ppm=int(self.dram_contention),
            clock_drop_ppm=int(self.clock_drop),
            priority_effect_ppm=int(self.priority_effect),
        )


class DriverCosts(Section, frozen=True, kw_only=True):
    """What driver calls cost, and how exact the instants of events are."""

    call: DurationNs = DurationNs(0)
    """Shortest duration of a call."""
    event_record: DurationNs = DurationNs(0)
    event_query: DurationNs = DurationNs(0)
    event_resolution: DurationNs = DurationNs(0)
    clock_drift_ppb: Count = Count(0)
    """By how much the device's clock is faster than the host's, in billionths."""


class NvmlCosts(Section, frozen=True, kw_only=True):
    """How late and how smooth NVML's values are."""

    delay: DurationNs = DurationNs(0)
    """Age of the newest sample that it shows."""
    window: DurationNs = DurationNs(0)
    """Over which utilization and power are averaged; 0: one sample period."""


class KernelCosts(Section, frozen=True, kw_only=True):
    """What durations of kernels depend on, beyond their grid."""

    data_spread: ShareOfWhole = ShareOfWhole(0)
    """Standard deviation over mean of durations that depend on the data; 0: every launch takes as long as the last."""


class GpuCosts(Section, frozen=True, kw_only=True):
    """All costs of a software GPU; a costs file has the same tables and keys."""

    device: DeviceCosts = DeviceCosts()
    driver: DriverCosts = DriverCosts()
    nvml: NvmlCosts = NvmlCosts()
    kernels: KernelCosts = KernelCosts()

    def with_slice(self, slice_ns: int) -> GpuCosts:
        """Return the same with another time slice."""
        return msgspec.structs.replace(self, device=msgspec.structs.replace(self.device, slice=DurationNs(slice_ns)))

    def packed(self) -> bytes:
        """Return the words that the device server takes (native/python/softgpu.c)."""
        sections = (self.device, self.driver, self.nvml, self.kernels)
        return array("Q", [int(value) for section in sections for value in msgspec.structs.astuple(section)]).tobytes()


IDEAL: Final = GpuCosts()
HARDWARE: Final = GpuCosts(
    device=DeviceCosts(
        switch=DurationNs(100 * MICROSECOND_NS),
        launch=DurationNs(3 * MICROSECOND_NS),
        issue_full=ShareOfWhole(500_000),
        cache_contention=ShareOfWhole(70_000),
        dram_contention=ShareOfWhole(30_000),
        clock_drop=ShareOfWhole(100_000),
        priority_effect=ShareOfWhole(500_000),
    ),
    driver=DriverCosts(
        call=DurationNs(2 * MICROSECOND_NS),
        event_record=DurationNs(2 * MICROSECOND_NS),
        event_query=DurationNs(MICROSECOND_NS),
        event_resolution=DurationNs(500),
        clock_drift_ppb=Count(20_000),
    ),
    nvml=NvmlCosts(delay=DurationNs(300 * MILLISECOND_NS), window=DurationNs(1000 * MILLISECOND_NS)),
    kernels=KernelCosts(data_spread=ShareOfWhole(20_000)),
)
NAMED: Final = {"ideal": IDEAL, "hardware": HARDWARE}


def hardware(key: str) -> DeviceConfig:
    """Return a preset with the `hardware` costs."""
    return HARDWARE.device.applied(preset(key))


def hardware_hosts() -> Costs:
    """Return simulated hosts whose kernels depend on the data of their requests, as with the `hardware` costs."""
    return Costs(data_spread_ppm=int(HARDWARE.kernels.data_spread))


def read_costs(named: str) -> GpuCosts:
    """Return costs by name, or from a TOML file; what a file omits is as with `ideal`."""
    if named in NAMED:
        return NAMED[named]
    try:
        text = Path(named).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError("--costs", named, f"write {' or '.join(NAMED)}, or a readable TOML file ({reason})") from None
    costs = decode_toml(text, GpuCosts, named)
    _check(costs, named)
    return costs


def _check(costs: GpuCosts, where: str) -> None:
    device, driver = costs.device, costs.driver
    limits = (
        ("device.switch", device.switch, 0, _MAX_SWITCH_NS, "from 0 to 100ms"),
        ("device.slice", device.slice, _MIN_SLICE_NS, 2**62, "at least 10us"),
        ("device.launch", device.launch, 0, _MAX_CALL_NS, "at most 1ms"),
        ("device.issue_full", device.issue_full, 0, _WHOLE_PPM, "at most 100%"),
        ("device.cache_contention", device.cache_contention, 0, _MAX_CONTENTION_PPM, "at most 400%"),
        ("device.dram_contention", device.dram_contention, 0, _MAX_CONTENTION_PPM, "at most 400%"),
        ("device.clock_drop", device.clock_drop, 0, _MAX_CLOCK_DROP_PPM, "at most 50%"),
        ("device.priority_effect", device.priority_effect, 0, _WHOLE_PPM, "at most 100%"),
        ("driver.call", driver.call, 0, _MAX_CALL_NS, "at most 1ms"),
        ("driver.event_record", driver.event_record, 0, _MAX_CALL_NS, "at most 1ms"),
        ("driver.event_query", driver.event_query, 0, _MAX_CALL_NS, "at most 1ms"),
        ("kernels.data_spread", costs.kernels.data_spread, 0, _MAX_DATA_SPREAD_PPM, "at most 30%"),
        ("driver.event_resolution", driver.event_resolution, 0, _MAX_CALL_NS, "at most 1ms"),
    )
    for field, value, least, most, remedy in limits:
        if not least <= value <= most:
            raise ConfigError(field, int(value), f"write a value {remedy}", where=where)
