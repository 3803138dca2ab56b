"""What do online tenants keep of their device from now on? One file per policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from cotenant.domain.control import ControlLimits
from cotenant.policy.adjust.aimd import Aimd
from cotenant.policy.adjust.feedback import Feedback
from cotenant.policy.adjust.fixed import Fixed
from cotenant.policy.adjust.verdict import Adjuster

AdjustPolicy: TypeAlias = Callable[[ControlLimits, int], Adjuster]

POLICIES: Final[dict[str, AdjustPolicy]] = {
    "feedback": Feedback,
    "fixed": Fixed,
    "aimd": Aimd,
}
