"""Configuration of share adjustment."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.node.model.control import ControlLimits
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS
from cotenant.units.share import WHOLE_PPM
from cotenant.units.text import format_duration, format_share
from cotenant.units.toml import DurationNs, Section, ShareOfWhole

CONTROL: Final = ControlLimits()
_SHORTEST_NS: Final = 10 * MILLISECOND_NS
_LONGEST_NS: Final = 10 * SECOND_NS
_LEAST_PPM: Final = 10_000


class ControlConfig(Section, frozen=True):
    """The share of a device that online tenants with a latency objective (--slo) get; see docs/concepts/control.md."""

    adjust: Annotated[
        str,
        Meta(
            pattern=r"^(feedback|fixed|aimd|off)\Z",
            description="adjust the online share by measured latency (feedback), forecast (fixed), AIMD (aimd), or off",
        ),
    ] = CONTROL.adjust
    adjust_period: Annotated[
        DurationNs, Meta(description="length of a measurement window of online tenants with an SLO")
    ] = DurationNs(CONTROL.period_ns)
    slo_quantile: Annotated[ShareOfWhole, Meta(description="fraction of the requests that must meet the SLO")] = (
        ShareOfWhole(CONTROL.quantile_ppm)
    )
    slo_headroom: Annotated[ShareOfWhole, Meta(description="fraction of the SLO kept free as a safety margin")] = (
        ShareOfWhole(CONTROL.headroom_ppm)
    )
    min_online_share: Annotated[
        ShareOfWhole, Meta(description="minimum share of the GPU for active online tenants with an SLO")
    ] = ShareOfWhole(CONTROL.min_online_ppm)
    max_online_share: Annotated[
        ShareOfWhole, Meta(description="maximum share of the GPU for online tenants with an SLO")
    ] = ShareOfWhole(CONTROL.max_online_ppm)

    mps_share: Annotated[
        str,
        Meta(
            pattern=r"^(on|off)\Z",
            description="under MPS, start offline programs with only the SMs outside the online share: on or off",
        ),
    ] = "on" if CONTROL.mps_share else "off"
    simple_mode: Annotated[
        str,
        Meta(
            pattern=r"^(measured|off)\Z",
            description="under MPS, open the gate and give offline work a fixed part of the SMs where that is measured "
            "to be better (measured), or never (off)",
        ),
    ] = CONTROL.simple_mode

    def limits(self) -> ControlLimits:
        """Return the values that decisions depend on, as integers."""
        shares = (self.slo_quantile, self.slo_headroom, self.min_online_share, self.max_online_share)
        quantile, headroom, least, most = (int(share) for share in shares)
        times = (int(self.adjust_period), self.adjust)
        return ControlLimits(*times, quantile, headroom, least, most, self.mps_share == "on", self.simple_mode)


def validate_control(control: ControlConfig) -> None:
    """Reject bounds that leave nothing to adjust and periods that are too short or too long."""
    if not _SHORTEST_NS <= control.adjust_period <= _LONGEST_NS:
        remedy = 'must be between 10ms and 10s, for example "100ms"'
        raise ConfigError("control.adjust_period", format_duration(control.adjust_period), remedy)
    if control.min_online_share < _LEAST_PPM:
        remedy = 'must be at least 1%, for example "20%"'
        raise ConfigError("control.min_online_share", format_share(control.min_online_share), remedy)
    if control.min_online_share > control.max_online_share:
        remedy = f"must not be above control.max_online_share, which is {format_share(control.max_online_share)}"
        raise ConfigError("control.min_online_share", format_share(control.min_online_share), remedy)
    if not WHOLE_PPM // 2 <= control.slo_quantile < WHOLE_PPM:
        remedy = 'must be at least 50% and below 100%, for example "99%"'
        raise ConfigError("control.slo_quantile", format_share(control.slo_quantile), remedy)
    if control.slo_headroom > WHOLE_PPM // 2:
        remedy = 'must be at most 50%, for example "10%"'
        raise ConfigError("control.slo_headroom", format_share(control.slo_headroom), remedy)
