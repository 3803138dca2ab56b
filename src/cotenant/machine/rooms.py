"""Where is room for whom? What the promises leave of each device, and which device a newcomer gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from cotenant.domain.event import NodeSettings
from cotenant.domain.foretold import Foretold, Sharing
from cotenant.domain.gate import SEATS_LIMIT, GateRules
from cotenant.domain.gpu import WHOLE_PPM, Gpu, GpuRoom
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Tenant, TenantSpec
from cotenant.errors import InvariantError
from cotenant.policy import admit, place
from cotenant.policy.limit.share import share_of
from cotenant.policy.place.choice import Weighed
from cotenant.policy.predict.together import foretell


class Choice(NamedTuple):
    """A device for a newcomer, and what the policy says for it; nothing where it did not look at who comes."""

    gpu: int
    why: str = ""
    short_ppm: int = 0
    """What online tenants would need beyond the whole of the device to keep their objectives."""


class Rooms:
    """One room per device, and its rank by the place policy: only a change is ranked anew.

    Who is there is kept as well, in no order: a policy that predicts looks at it.
    """

    __slots__ = ("_foretold", "_judge", "_policy", "_ranks", "_sharing", "_there", "rooms")

    def __init__(self, settings: NodeSettings, tenants: Iterable[Tenant], rules: GateRules) -> None:
        """Derive the rooms from the devices, from who is there, and from the rules in force."""
        for verb, policies, name in (
            ("place", place.POLICIES, settings.place),
            ("admit", admit.POLICIES, settings.admit),
        ):
            if name not in policies:
                raise InvariantError(f"the journal names the {verb} policy {name!r}, which this version does not have")
        self._judge = admit.POLICIES[settings.admit]
        self._policy = place.POLICIES[settings.place]
        control = settings.control
        self._sharing = Sharing(
            is_mps=settings.is_mps, quantile_ppm=control.quantile_ppm, headroom_ppm=control.headroom_ppm
        )
        self.rooms = [_whole(index, gpu) for index, gpu in enumerate(settings.gpus)]
        self._ranks = [self._policy.rank(room) for room in self.rooms]
        self._there: list[list[TenantSpec]] = [[] for _ in self.rooms]
        self._foretold: dict[int, Foretold] = {}  # by device, until somebody comes or goes
        self.ruled(rules)
        for tenant in tenants:
            self.occupy(tenant.terms.gpu, tenant.spec, 1)
            if tenant.standing.aside:
                self.reserve(tenant.terms.gpu, tenant.spec, -1)

    def find(self, spec: TenantSpec, barred: dict[int, Reject]) -> Choice | Reject:
        """Of the devices that have room, the one the place policy likes best; else what is against that one."""
        ranks = self._ranks
        best = ranks.index(min(ranks))
        if self._policy.weigh is None or len(ranks) == 1:
            objection = self.objection(spec, best, barred)
            if objection is None:
                return self.here(spec, best)
            fitting = [rank for index, rank in enumerate(ranks) if self.objection(spec, index, barred) is None]
            return Choice(ranks.index(min(fitting))) if fitting else objection
        weighed = {
            index: self._weigh(spec, index)
            for index in range(len(ranks))
            if self.objection(spec, index, barred) is None
        }
        if not weighed:
            return self.objection(spec, best, barred) or Choice(best)
        first, *rest = sorted(weighed, key=lambda index: (weighed[index].cost, ranks[index]))
        why = f"GPU {first}: {weighed[first].why}"
        why += f"; next best GPU {rest[0]}: {weighed[rest[0]].why}" if rest else ""
        return Choice(first, why, weighed[first].short_ppm)

    def here(self, spec: TenantSpec, gpu: int) -> Choice:
        """A device that is given: there is nothing to tell of it, unless an objective is not kept there."""
        weighed = None if self._policy.weigh is None else self._weigh(spec, gpu)
        if weighed is None or not weighed.short_ppm:
            return Choice(gpu)
        return Choice(gpu, f"GPU {gpu}: {weighed.why}", weighed.short_ppm)

    def _weigh(self, spec: TenantSpec, gpu: int) -> Weighed:
        assert self._policy.weigh is not None
        there = self._there[gpu]
        if gpu not in self._foretold:
            self._foretold[gpu] = foretell(there, self._sharing)
        return self._policy.weigh(self._foretold[gpu], foretell((*there, spec), self._sharing))

    def objection(self, spec: TenantSpec, gpu: int, barred: dict[int, Reject]) -> Reject | None:
        """What is against somebody on this device: that it is barred, or full, or has no room for what is asked."""
        room = self.rooms[gpu]
        if gpu in barred:
            return barred[gpu]
        if room.tenants >= SEATS_LIMIT:
            detail = f"GPU {room.index} has {room.tenants} tenants, and {SEATS_LIMIT} is the most that can share one"
            return Reject(Reason.NO_SEAT, f"{detail}; wait for one to leave, or give the node another GPU")
        return self._judge(spec, room)

    def has_room(self, gpu: int, spec: TenantSpec) -> bool:
        """Whether somebody who has a seat there could have its promises back; a lost device has no room to keep."""
        return not 0 <= gpu < len(self.rooms) or self._judge(spec, self.rooms[gpu]) is None

    def would_fit(self, gpu: int, spec: TenantSpec, memory_bytes: int, share_ppm: int) -> bool:
        """Whether somebody would be admitted if so much more memory and share were free."""
        room = self.rooms[gpu]
        freed = (room.memory_free_bytes + memory_bytes, room.share_free_ppm + share_ppm)
        return self._judge(spec, GpuRoom(gpu, *freed, room.tenants)) is None

    def objection_to_change(self, gpu: int, before: TenantSpec, after: TenantSpec) -> Reject | None:
        """What is against somebody who is there having other promises; less is always possible."""
        if not 0 <= gpu < len(self.rooms) or after.share_ppm <= before.share_ppm:
            return None
        room = self.rooms[gpu]
        freed = (room.memory_free_bytes + before.memory_bytes, room.share_free_ppm + before.share_ppm)
        return self._judge(after, GpuRoom(gpu, *freed, room.tenants))

    def ruled(self, rules: GateRules) -> None:
        """Tenants let each other pass by these rules from now on."""
        kept_ppm = share_of(rules.delay_ppm)
        self._sharing = msgspec.structs.replace(self._sharing, policy=rules.policy, kept_ppm=kept_ppm)
        self._foretold.clear()

    def occupy(self, gpu: int, spec: TenantSpec, sign: int) -> None:
        """Somebody comes (1) or goes (-1), with what it was promised."""
        self._change(gpu, spec, sign, sign)
        if 0 <= gpu < len(self.rooms):
            there = self._there[gpu]
            there.append(spec) if sign > 0 else there.remove(spec)
            self._foretold.pop(gpu, None)

    def reserve(self, gpu: int, spec: TenantSpec, sign: int) -> None:
        """Somebody who is there has its promises back (1), or gives them up (-1)."""
        self._change(gpu, spec, sign, 0)

    def _change(self, gpu: int, spec: TenantSpec, sign: int, tenants: int) -> None:
        """A device that is none of ours any more has no room to keep."""
        if not 0 <= gpu < len(self.rooms):
            return
        room = self.rooms[gpu]
        room = GpuRoom(
            gpu,
            room.memory_free_bytes - sign * spec.memory_bytes,
            room.share_free_ppm - sign * spec.share_ppm,
            room.tenants + tenants,
        )
        self.rooms[gpu] = room
        self._ranks[gpu] = self._policy.rank(room)


def _whole(index: int, gpu: Gpu) -> GpuRoom:
    return GpuRoom(index, gpu.memory_bytes, WHOLE_PPM, 0)
