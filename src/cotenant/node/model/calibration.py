"""What sharing a device costs, as the node measured it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from cotenant.units.text import round_duration
from cotenant.units.value import Value

GAP_WORK_NS: Final = 100 * MICROSECOND_NS
"""Work that the gate submits into a gap at once (CT_GATE_DEPTH_NS in native/gate/gate.h)."""
WHOLE_PPM: Final = 1_000_000
MPS_SWITCH_NS: Final = 10 * MICROSECOND_NS
"""If MPS is effective, work of another process delays a kernel by no more than this."""
Part = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Measured = Annotated[int, msgspec.Meta(ge=0, le=SECOND_NS)]


class Calibration(Value, frozen=True, kw_only=True):
    """Measurements of one device with one driver; 0: could not be measured."""

    driver: Annotated[str, msgspec.Meta(max_length=64)]
    """Version of the driver."""
    uuid: Annotated[str, msgspec.Meta(max_length=64)]
    """UUID of the device."""
    is_mps: bool
    """Whether the measuring processes were clients of an MPS server."""
    switch_ns: Measured = 0
    """By how much longer a kernel takes if another process used the device before."""
    slice_ns: Measured = 0
    """For how long another process that has work keeps the device."""
    launch_ns: Measured = 0
    """Duration of a launch call."""
    event_record_ns: Measured = 0
    event_query_ns: Measured = 0
    event_resolution_ns: Measured = 0
    """Smallest difference between two durations that events show."""

    priority_effect_ppm: Part | None = None
    """Under MPS, which part of the delay by another process a lower priority of that process avoids; None: unknown."""

    @property
    def ignored_priority_ppm(self) -> int:
        """The part of kernels on which MPS priorities have no effect; 0 if that is unknown."""
        return 0 if self.priority_effect_ppm is None else WHOLE_PPM - self.priority_effect_ppm

    @property
    def has_ineffective_mps(self) -> bool:
        """Whether processes under MPS take turns nevertheless."""
        return self.is_mps and self.switch_ns > MPS_SWITCH_NS and self.slice_ns > MILLISECOND_NS

    @property
    def gap_filling_loss(self) -> str:
        """Why filling gaps cannot pay off on this device; empty: it can."""
        takes_turns = not self.is_mps or self.has_ineffective_mps
        if takes_turns and self.slice_ns and 2 * self.switch_ns >= self.slice_ns:
            return (
                f"a switch to another process and back takes {round_duration(2 * self.switch_ns)}, "
                f"a time slice only {round_duration(self.slice_ns)}"
            )
        for what, cost_ns in (
            ("the resolution of events is", self.event_resolution_ns),
            ("launching a kernel takes", self.launch_ns),
        ):
            if cost_ns >= GAP_WORK_NS:
                return f"{what} {round_duration(cost_ns)}, and a gap gets {round_duration(GAP_WORK_NS)} of work at once"
        return ""

    def describe(self) -> str:
        """Return the measurements in words."""
        parts = [
            f"a switch between processes takes {round_duration(self.switch_ns)}",
            f"a time slice {round_duration(self.slice_ns)}",
            f"a launch {round_duration(self.launch_ns)}",
            f"recording an event {round_duration(self.event_record_ns)}",
            f"a query {round_duration(self.event_query_ns)}",
            f"events have a resolution of {round_duration(self.event_resolution_ns)}",
        ]
        if self.is_mps:
            parts.append("MPS is not effective" if self.has_ineffective_mps else "MPS is effective")
            parts.append(self._describe_priorities())
        loss = self.gap_filling_loss
        if loss:
            parts.append(f"gaps are not filled: {loss}")
        return ", ".join(parts)

    def _describe_priorities(self) -> str:
        if self.priority_effect_ppm is None:
            return "the effect of MPS priorities is unknown"
        return f"a lower MPS priority avoids {self.priority_effect_ppm // 10_000} % of the delay"
