"""What do the online tenants of each device keep of it, and when is that no longer so?

Control proposes, this remembers: what was last said holds for as long as an online tenant with an objective is there.
"""

from __future__ import annotations

from cotenant.domain.action import Action, Adjusted
from cotenant.domain.control import Dial
from cotenant.domain.event import SharesAdjusted
from cotenant.domain.instant import Instant
from cotenant.domain.tenant import Kind, Tenant
from cotenant.machine.roll import Roll
from cotenant.policy.limit.share import share_of


def has_objective(tenant: Tenant) -> bool:
    """Whether its latency is to be kept."""
    return tenant.terms.kind is Kind.ONLINE and tenant.terms.slo_ns > 0


class Dials:
    """Takes adjustments over into the seats, and out again when nobody is left whom they are for."""

    __slots__ = ("_roll",)

    def __init__(self, roll: Roll) -> None:
        """About the devices of this roll."""
        self._roll = roll

    def adjusted(self, event: SharesAdjusted, now: Instant) -> list[Action]:
        """Who left in the meantime is not adjusted; a device on which nothing is to be kept neither."""
        del now
        roll, proposed = self._roll, event.adjustment
        gpu = proposed.gpu
        kept = {tenant.terms.slot for tenant in roll.on(gpu) if has_objective(tenant)}
        if not kept or not roll.settings.control.enabled or gpu >= len(roll.settings.gpus):
            return []
        known = roll.seats.dials.get(gpu)
        was_ppm = share_of(roll.rules.delay_ppm) if known is None else known.online_ppm
        shares = tuple((slot, share_ppm) for slot, share_ppm in proposed.shares if slot in kept)
        self._set(Dial(gpu, proposed.online_ppm, shares))
        return [Adjusted(roll.turn, proposed, was_ppm)]

    def settle(self) -> None:
        """After a turn that changed who is where: what is said of those who are gone is forgotten."""
        roll = self._roll
        for gpu in sorted(set(roll.seats.dials) & set(roll.seats.stirred)):
            dial = roll.seats.dials[gpu]
            here = {tenant.terms.slot for tenant in roll.on(gpu) if has_objective(tenant)}
            shares = tuple((slot, share_ppm) for slot, share_ppm in dial.shares if slot in here)
            if not here or not roll.settings.control.enabled:
                self._set(Dial(gpu, 0))
            elif shares != dial.shares:
                self._set(Dial(gpu, dial.online_ppm, shares))

    def _set(self, dial: Dial) -> None:
        """The seats whose share changes are put anew; the whole roster is said, for the rules of it change."""
        self._roll.seats.turn_to(dial)
        for tenant in self._roll.on(dial.gpu):
            self._roll.seats.put(tenant)
        self._roll.seats.say_all(dial.gpu)
