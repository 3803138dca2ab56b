"""Configuration of protection."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.node.model.protection import OnBypass, ProtectLimits
from cotenant.units.text import format_duration, format_share
from cotenant.units.toml import DurationNs, Section, ShareOfWhole

PROTECT: Final = ProtectLimits()


class ProtectConfig(Section, frozen=True):
    """When a device harms its online tenants, and how offline tenants are removed; see docs/concepts/protection.md."""

    watch_period: Annotated[DurationNs, Meta(description="sampling period of a GPU in use")] = DurationNs(
        PROTECT.period_ns
    )
    memory_high: Annotated[
        ShareOfWhole, Meta(description="memory use above this admits no further offline tenants")
    ] = ShareOfWhole(PROTECT.memory_ppm)
    memory_calm: Annotated[ShareOfWhole, Meta(description="memory use up to this counts as calm")] = ShareOfWhole(
        PROTECT.memory_calm_ppm
    )
    memory_over: Annotated[
        ShareOfWhole,
        Meta(description="memory use above this removes offline tenants from GPUs with online tenants; 100%: never"),
    ] = ShareOfWhole(PROTECT.memory_over_ppm)
    utilization_high: Annotated[
        ShareOfWhole,
        Meta(description="utilization above this, together with activity_high, admits no further offline tenants"),
    ] = ShareOfWhole(PROTECT.utilization_ppm)
    utilization_calm: Annotated[ShareOfWhole, Meta(description="utilization up to this counts as calm")] = ShareOfWhole(
        PROTECT.utilization_calm_ppm
    )
    activity_high: Annotated[
        ShareOfWhole,
        Meta(description="SM activity above this, together with utilization_high, admits no further offline tenants"),
    ] = ShareOfWhole(PROTECT.sm_activity_ppm)
    activity_calm: Annotated[ShareOfWhole, Meta(description="SM activity up to this counts as calm")] = ShareOfWhole(
        PROTECT.sm_activity_calm_ppm
    )
    clock_low: Annotated[
        ShareOfWhole,
        Meta(description="SM clock below this fraction of its maximum under load admits no further offline tenants"),
    ] = ShareOfWhole(PROTECT.clock_ppm)
    clock_calm: Annotated[ShareOfWhole, Meta(description="SM clock from this fraction on counts as calm")] = (
        ShareOfWhole(PROTECT.clock_calm_ppm)
    )
    clock_over: Annotated[
        ShareOfWhole, Meta(description="SM clock below this fraction removes offline tenants: the hardware throttles")
    ] = ShareOfWhole(PROTECT.clock_over_ppm)
    loaded: Annotated[
        ShareOfWhole, Meta(description="utilization below which a low clock is ignored as power saving")
    ] = ShareOfWhole(PROTECT.load_ppm)
    high_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="consecutive high samples until a GPU is Unhealthy")
    ] = PROTECT.samples
    over_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="further consecutive samples over the limit until it is Overlimit")
    ] = PROTECT.over_samples
    calm_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="consecutive calm samples until its health improves by one step")
    ] = PROTECT.calm_samples
    first_samples: Annotated[
        int, Meta(ge=1, le=10_000, description="consecutive good samples until a new GPU is Healthy")
    ] = PROTECT.init_samples
    backoff: Annotated[DurationNs, Meta(description="time without offline tenants after the first Overlimit")] = (
        DurationNs(PROTECT.backoff_ns)
    )
    backoff_cap: Annotated[DurationNs, Meta(description="maximum of that time, which doubles with each Overlimit")] = (
        DurationNs(PROTECT.backoff_cap_ns)
    )
    backoff_window: Annotated[DurationNs, Meta(description="an Overlimit longer ago than this no longer counts")] = (
        DurationNs(PROTECT.backoff_window_ns)
    )
    hang_factor: Annotated[
        int, Meta(ge=2, le=1_000_000, description="a kernel hangs if it exceeds its expected time by this factor")
    ] = PROTECT.hang_factor
    hang_least: Annotated[DurationNs, Meta(description="minimum run time of a kernel that counts as hung")] = (
        DurationNs(PROTECT.hang_least_ns)
    )
    hang_unknown: Annotated[
        DurationNs, Meta(description="run time after which a kernel without a profile counts as hung; 0s: never")
    ] = DurationNs(PROTECT.hang_unknown_ns)
    drain: Annotated[
        DurationNs, Meta(description="time for a tenant's work in flight to finish before its exit continues")
    ] = DurationNs(PROTECT.drain_ns)
    evict_grace: Annotated[
        DurationNs, Meta(description="default time between SIGTERM and SIGKILL of an evicted program")
    ] = DurationNs(PROTECT.grace_ns)
    fault_grace: Annotated[
        DurationNs, Meta(description="time for a program with a fatal CUDA error to exit by itself")
    ] = DurationNs(PROTECT.fault_grace_ns)
    obey: Annotated[
        DurationNs, Meta(description="time for `cotenant run` to kill its program before the node does")
    ] = DurationNs(PROTECT.obey_ns)
    make_room: Annotated[
        DurationNs, Meta(description="how long an online tenant waits to join while offline tenants free memory")
    ] = DurationNs(PROTECT.make_room_ns)
    online_first: Annotated[
        DurationNs, Meta(description="how long offline tenants wait for online ones to return after an MPS server died")
    ] = DurationNs(PROTECT.online_first_ns)
    pod_notice: Annotated[
        DurationNs, Meta(description="how long a pod's tenant waits, paused, for its eviction before the node ends it")
    ] = DurationNs(PROTECT.pod_notice_ns)
    probe: Annotated[
        str,
        Meta(
            pattern=r"^(on|off)\Z",
            description="create a context on a new GPU once, to measure how much memory it takes",
        ),
    ] = "on"

    on_bypass: Annotated[
        str,
        Meta(
            pattern=r"^(evict|report)\Z",
            description="device memory that the hook did not see or the quota does not allow: "
            "evict offline tenants at once and report online ones, or report all",
        ),
    ] = OnBypass.EVICT.value

    def limits(self) -> ProtectLimits:
        """Return the values that decisions depend on, as integers."""
        decided_by = self.__struct_fields__[: len(ProtectLimits.__struct_fields__)]
        return ProtectLimits(*(int(getattr(self, field)) for field in decided_by))


def validate_protection(protect: ProtectConfig) -> None:
    """Reject thresholds whose order would make a device's health oscillate."""
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
        raise ConfigError("protect.watch_period", "0s", 'must be above zero, for example "1s"')


def _plain(value: ShareOfWhole | DurationNs) -> str:
    return format_duration(value) if isinstance(value, DurationNs) else format_share(value)
