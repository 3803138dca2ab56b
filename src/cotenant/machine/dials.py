"""What do the online tenants of each device keep of it, and when is that no longer so?

Control proposes, this remembers: what was last said holds for as long as an online tenant with an objective is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cotenant.domain.action import Action, Adjusted
from cotenant.domain.control import Dial
from cotenant.domain.event import SharesAdjusted
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import Instant
from cotenant.domain.tenant import Kind, Tenant
from cotenant.machine.roll import Roll
from cotenant.policy.limit.share import share_of


def has_objective(tenant: Tenant) -> bool:
    """Whether its latency is to be kept."""
    return tenant.terms.kind is Kind.ONLINE and tenant.terms.slo_ns > 0


def equals_of(tenants: Iterable[Tenant]) -> set[int]:
    """The slots of those who have an objective, and an equal that has one, too: the node divides among these."""
    kept = [tenant.terms for tenant in tenants if has_objective(tenant)]
    priorities = Counter(terms.priority for terms in kept)
    return {terms.slot for terms in kept if priorities[terms.priority] > 1}


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
        here = roll.on(gpu) if 0 <= gpu < len(roll.settings.gpus) else []
        is_for_somebody = proposed.online_ppm > 0 and any(map(has_objective, here))
        if not is_for_somebody or not roll.settings.control.enabled:
            return []
        known = roll.seats.dials.get(gpu)
        was_ppm = share_of(roll.rules.delay_ppm) if known is None else known.online_ppm
        self._set(Dial(gpu, proposed.online_ppm, _of(equals_of(here), proposed.shares)))
        return [Adjusted(roll.turn, proposed, was_ppm)]

    def settle(self) -> None:
        """After a turn that changed who is where: what is said of those who are gone is forgotten."""
        roll = self._roll
        for gpu in sorted(set(roll.seats.dials) & set(roll.seats.stirred)):
            dial = roll.seats.dials[gpu]
            here = roll.on(gpu)
            shares = _of(equals_of(here), dial.shares)
            if not any(map(has_objective, here)) or not roll.settings.control.enabled:
                self._set(Dial(gpu, 0))
            elif shares != dial.shares:
                self._set(Dial(gpu, dial.online_ppm, shares))

    def _set(self, dial: Dial) -> None:
        """The seats whose share changes are put anew; the whole roster is said, for the rules of it change."""
        self._roll.seats.turn_to(dial)
        for tenant in self._roll.on(dial.gpu):
            self._roll.seats.put(tenant)
        self._roll.seats.say_all(dial.gpu)


def _of(slots: set[int], shares: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return tuple((slot, share_ppm) for slot, share_ppm in shares if slot in slots and 0 < share_ppm <= WHOLE_PPM)
