"""Policies that adjust the online share of a device; one file per policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.node.model.control import ControlLimits
from cotenant.node.policy.adjust.aimd import Aimd
from cotenant.node.policy.adjust.decision import Adjuster
from cotenant.node.policy.adjust.feedback import Feedback
from cotenant.node.policy.adjust.fixed import FixedAdjuster
from cotenant.node.policy.adjust.simple_mode import GateOnly, MeasuredMode

AdjustPolicy: TypeAlias = Callable[[ControlLimits, int], Adjuster]

POLICIES: Final[dict[str, AdjustPolicy]] = {
    "feedback": Feedback,
    "fixed": FixedAdjuster,
    "aimd": Aimd,
}

SIMPLE_MODES: Final[dict[str, type[MeasuredMode | GateOnly]]] = {
    "measured": MeasuredMode,
    "off": GateOnly,
}
