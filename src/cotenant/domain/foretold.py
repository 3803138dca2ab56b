"""How would those on a device fare together, by prediction, and by which way of sharing?"""

from __future__ import annotations

from cotenant.domain.gate import GatePolicy
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.value import Value


class Sharing(Value, frozen=True):
    """How the tenants of a device share it."""

    policy: GatePolicy = GatePolicy.FILL
    kept_ppm: int = 980_000
    """What online tenants without an objective keep of it while they are active."""
    is_mps: bool = False
    """Whether their kernels run side by side."""
    quantile_ppm: int = 990_000
    headroom_ppm: int = 100_000
    """Of an objective: which quantile it is about, and how much of it is left free."""


class Foretold(Value, frozen=True):
    """How those on a device would fare."""

    needs_ppm: int = 0
    """What online tenants with an objective need of it, in sum; above a million where it is too little."""
    online: float = 0.0
    """What online tenants get done, each 1 alone and within its objective."""
    offline: float = 0.0

    @property
    def short_ppm(self) -> int:
        """By how much needs exceed the device."""
        return max(self.needs_ppm - WHOLE_PPM, 0)

    @property
    def goodput(self) -> float:
        """All of it."""
        return self.online + self.offline
