"""What can be configured of protection? Each field says in its own words what it is for."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.domain.protect import ProtectLimits
from cotenant.errors import ConfigError
from cotenant.format.quantity import format_duration, format_share
from cotenant.format.toml import DurationNs, Section, ShareOfWhole

PROTECT: Final = ProtectLimits()


class ProtectConfig(Section, frozen=True):
    """When a device harms the online work on it, and how offline gives way; docs/protection.md gives the reasons."""

    watch_period: Annotated[DurationNs, Meta(description="how often a device in use is looked at")] = DurationNs(
        PROTECT.period_ns
    )
    memory_high: Annotated[ShareOfWhole, Meta(description="memory used above this: no more offline comes")] = (
        ShareOfWhole(PROTECT.memory_ppm)
    )
    memory_calm: Annotated[ShareOfWhole, Meta(description="memory used up to this is calm: room for a newcomer")] = (
        ShareOfWhole(PROTECT.memory_calm_ppm)
    )
    memory_over: Annotated[
        ShareOfWhole, Meta(description="above this offline goes, or online's next context finds no room; 100%: never")
    ] = ShareOfWhole(PROTECT.memory_over_ppm)
    utilization_high: Annotated[
        ShareOfWhole, Meta(description="with activity_high: the device beside online is full, no more offline comes")
    ] = ShareOfWhole(PROTECT.utilization_ppm)
    utilization_calm: Annotated[ShareOfWhole, Meta(description="utilization up to this is calm")] = ShareOfWhole(
        PROTECT.utilization_calm_ppm
    )
    activity_high: Annotated[
        ShareOfWhole, Meta(description="SM activity above this, with utilization_high: full in time and in space")
    ] = ShareOfWhole(PROTECT.sm_activity_ppm)
    activity_calm: Annotated[ShareOfWhole, Meta(description="SM activity up to this is calm")] = ShareOfWhole(
        PROTECT.sm_activity_calm_ppm
    )
    clock_low: Annotated[
        ShareOfWhole, Meta(description="SM clock under load below this: power or heat slows all, no more offline comes")
    ] = ShareOfWhole(PROTECT.clock_ppm)
    clock_calm: Annotated[ShareOfWhole, Meta(description="SM clock from this on is calm")] = ShareOfWhole(
        PROTECT.clock_calm_ppm
    )
    clock_over: Annotated[
        ShareOfWhole, Meta(description="below this the hardware protects itself (it halves its clock): offline goes")
    ] = ShareOfWhole(PROTECT.clock_over_ppm)
    loaded: Annotated[ShareOfWhole, Meta(description="at less utilization a low clock only saves power")] = (
        ShareOfWhole(PROTECT.load_ppm)
    )
    high_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="samples in a row that are high, until a device is Unhealthy")
    ] = PROTECT.samples
    over_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="samples in a row over the limit, until it is Overlimit")
    ] = PROTECT.over_samples
    calm_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="calm samples in a row, until it is one step better again")
    ] = PROTECT.calm_samples
    first_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="good samples in a row, until a new device is Healthy")
    ] = PROTECT.init_samples
    backoff: Annotated[DurationNs, Meta(description="how long offline stays away after Overlimit, the first time")] = (
        DurationNs(PROTECT.backoff_ns)
    )
    backoff_cap: Annotated[DurationNs, Meta(description="how long at most: each time is twice the one before")] = (
        DurationNs(PROTECT.backoff_cap_ns)
    )
    backoff_window: Annotated[DurationNs, Meta(description="an Overlimit longer ago than this is forgotten")] = (
        DurationNs(PROTECT.backoff_window_ns)
    )
    hang_factor: Annotated[
        int, Meta(ge=2, le=1_000_000, description="a kernel that takes so many times what it should hangs")
    ] = PROTECT.hang_factor
    hang_least: Annotated[DurationNs, Meta(description="but none hangs that has not taken this long")] = DurationNs(
        PROTECT.hang_least_ns
    )
    hang_unknown: Annotated[
        DurationNs, Meta(description="a kernel that no profile knows hangs after this; 0s: never")
    ] = DurationNs(PROTECT.hang_unknown_ns)
    drain: Annotated[DurationNs, Meta(description="how long the work of a tenant that is to end may take to end")] = (
        DurationNs(PROTECT.drain_ns)
    )
    evict_grace: Annotated[
        DurationNs, Meta(description="how long a program that is to end has from SIGTERM to SIGKILL")
    ] = DurationNs(PROTECT.grace_ns)
    fault_grace: Annotated[
        DurationNs, Meta(description="how long a program that lost its device has to end by itself")
    ] = DurationNs(PROTECT.fault_grace_ns)
    obey: Annotated[
        DurationNs, Meta(description="how long `cotenant run` has to do what it is told, before the node does it")
    ] = DurationNs(PROTECT.obey_ns)
    make_room: Annotated[DurationNs, Meta(description="how long an online newcomer waits for offline to go")] = (
        DurationNs(PROTECT.make_room_ns)
    )
    online_first: Annotated[
        DurationNs, Meta(description="how long offline waits for online to be back after an MPS server died")
    ] = DurationNs(PROTECT.online_first_ns)
    probe: Annotated[
        str,
        Meta(pattern=r"^(on|off)\Z", description="make a context on a new device for a moment, to know what one takes"),
    ] = "on"

    def limits(self) -> ProtectLimits:
        """The part that the machine decides by, in plain integers."""
        decided_by = self.__struct_fields__[: len(ProtectLimits.__struct_fields__)]
        return ProtectLimits(*(int(getattr(self, field)) for field in decided_by))


def validate_protection(protect: ProtectConfig) -> None:
    """Calm must be farther from harm than harm is: or a device would change its state to and fro."""
    for lower, higher in (
        ("memory_calm", "memory_high"),
        ("memory_high", "memory_over"),
        ("utilization_calm", "utilization_high"),
        ("activity_calm", "activity_high"),
        ("clock_over", "clock_low"),
        ("clock_low", "clock_calm"),
        ("backoff", "backoff_cap"),
    ):
        if getattr(protect, lower) > getattr(protect, higher):
            remedy = f"must not be above protect.{higher}, which is {_plain(getattr(protect, higher))}"
            raise ConfigError(f"protect.{lower}", _plain(getattr(protect, lower)), remedy)
    if not protect.watch_period:
        raise ConfigError("protect.watch_period", "0s", 'a device cannot be looked at all the time, write "1s" or so')


def _plain(value: ShareOfWhole | DurationNs) -> str:
    return format_duration(value) if isinstance(value, DurationNs) else format_share(value)
