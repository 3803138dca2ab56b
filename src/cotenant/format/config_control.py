"""What can be configured of the adjustment of shares? Each field says in its own words what it is for."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.domain.control import ControlLimits
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.errors import ConfigError
from cotenant.format.quantity import format_duration, format_share
from cotenant.format.toml import DurationNs, Section, ShareOfWhole

CONTROL: Final = ControlLimits()
_SHORTEST_NS: Final = 10 * MILLISECOND_NS
_LONGEST_NS: Final = 10 * SECOND_NS
_LEAST_PPM: Final = 10_000


class ControlConfig(Section, frozen=True):
    """How much of a device online tenants with an objective (--slo) keep; docs/control.md gives the reasons."""

    adjust: Annotated[
        str,
        Meta(
            pattern=r"^(feedback|fixed|aimd|off)\Z",
            description="keep SLOs by what is measured (feedback), foreseen (fixed), plainly (aimd), or not (off)",
        ),
    ] = CONTROL.adjust
    adjust_period: Annotated[DurationNs, Meta(description="how often online tenants with an SLO are looked at")] = (
        DurationNs(CONTROL.period_ns)
    )
    slo_quantile: Annotated[ShareOfWhole, Meta(description="part of the requests that must keep the SLO")] = (
        ShareOfWhole(CONTROL.quantile_ppm)
    )
    slo_headroom: Annotated[ShareOfWhole, Meta(description="of the SLO, what is left free for the unforeseen")] = (
        ShareOfWhole(CONTROL.headroom_ppm)
    )
    online_least: Annotated[
        ShareOfWhole, Meta(description="of the device, what active online work with an SLO keeps at least")
    ] = ShareOfWhole(CONTROL.least_ppm)
    online_most: Annotated[ShareOfWhole, Meta(description="what it keeps at most, whatever its SLO")] = ShareOfWhole(
        CONTROL.most_ppm
    )

    mps_share: Annotated[
        str,
        Meta(
            pattern=r"^(on|off)\Z",
            description="under MPS, start offline programs with only the SMs that online leaves: on or off",
        ),
    ] = "on" if CONTROL.mps_share else "off"

    def limits(self) -> ControlLimits:
        """The part that decisions depend on, in plain integers."""
        shares = (self.slo_quantile, self.slo_headroom, self.online_least, self.online_most)
        quantile, headroom, least, most = (int(share) for share in shares)
        times = (int(self.adjust_period), self.adjust)
        return ControlLimits(*times, quantile, headroom, least, most, self.mps_share == "on")


def validate_control(control: ControlConfig) -> None:
    """Refuse what would leave nothing to adjust, or would look too often or hardly ever."""
    if not _SHORTEST_NS <= control.adjust_period <= _LONGEST_NS:
        remedy = 'shares are adjusted every 10ms to 10s, write "100ms" or so'
        raise ConfigError("control.adjust_period", format_duration(control.adjust_period), remedy)
    if control.online_least < _LEAST_PPM:
        remedy = 'online work keeps at least 1%, write "20%" or so'
        raise ConfigError("control.online_least", format_share(control.online_least), remedy)
    if control.online_least > control.online_most:
        remedy = f"must not be above control.online_most, which is {format_share(control.online_most)}"
        raise ConfigError("control.online_least", format_share(control.online_least), remedy)
    if not WHOLE_PPM // 2 <= control.slo_quantile < WHOLE_PPM:
        remedy = 'an objective holds for half of the requests or more, but never for all; write "99%" or so'
        raise ConfigError("control.slo_quantile", format_share(control.slo_quantile), remedy)
    if control.slo_headroom > WHOLE_PPM // 2:
        remedy = 'more than half of the objective cannot be left free, write "10%" or so'
        raise ConfigError("control.slo_headroom", format_share(control.slo_headroom), remedy)
