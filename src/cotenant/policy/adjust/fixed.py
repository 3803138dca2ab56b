"""Fixed: what is foreseen to be needed, and nothing of what is measured. Shows what feedback is worth."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.domain.control import Cause, ControlLimits, DeviceWindow
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant
from cotenant.domain.value import Value
from cotenant.policy.adjust.verdict import Foreseen, Verdict


class Grain(Value, frozen=True):
    """When a need is another one. Our choice."""

    step_ppm: int = 30_000


class Fixed:
    """One device's."""

    def __init__(self, limits: ControlLimits, online_ppm: int, grain: Grain | None = None) -> None:
        """Begin where it stands."""
        self.online_ppm = online_ppm
        self._limits = limits
        self._grain = grain or Grain()
        self._needs: dict[int, int] = {}
        self._why = "nothing was foreseen yet"

    def step(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> Verdict | None:
        """What the strictest is foreseen to need at the most; of one that nobody can foresee, all that there is."""
        del now
        limits, known = self._limits, {tenant.slot: tenant for tenant in window.tenants if tenant.promised}
        self._needs = {}
        for slot in known:
            need = foreseen[slot].need_ppm if slot in foreseen else None
            need_ppm = limits.most_ppm if need is None else round(min(need.high, limits.most_ppm))
            self._needs[slot] = max(need_ppm, limits.least_ppm)
        slot, online_ppm = max(self._needs.items(), key=lambda item: item[1])
        is_same = abs(online_ppm - self.online_ppm) < self._grain.step_ppm and online_ppm != limits.most_ppm
        if is_same or online_ppm == self.online_ppm:
            return None
        cause = Cause.LOAD_UP if online_ppm > self.online_ppm else Cause.LOAD_DOWN
        self.online_ppm = online_ppm
        self._why = "so much is foreseen to be needed"
        return Verdict(online_ppm, cause, self._why, slot, known[slot].generation)

    def needs(self) -> dict[int, int]:
        """By slot, what each is foreseen to need, where they cannot all have it."""
        return self._needs if len(self._needs) > 1 and sum(self._needs.values()) > WHOLE_PPM else {}

    def why(self) -> str:
        """What is foreseen."""
        return self._why
