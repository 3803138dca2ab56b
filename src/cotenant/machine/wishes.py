"""What do people want changed while the node runs, and may they?"""

from __future__ import annotations

import msgspec

from cotenant.domain.action import NO_PEER, Action, Refuse
from cotenant.domain.event import (
    EvictAsked,
    ObjectiveChanged,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantsPaused,
)
from cotenant.domain.gate import Limit
from cotenant.domain.instant import Instant
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, Terms
from cotenant.machine.exits import Exits
from cotenant.machine.roll import NO_GPU, Roll


class Wishes:
    """Carries out what somebody asks for, or says why not."""

    __slots__ = ("_exits", "_roll")

    def __init__(self, roll: Roll, exits: Exits) -> None:
        """About the tenants of this roll."""
        self._roll = roll
        self._exits = exits

    def paused(self, event: TenantsPaused, now: Instant) -> list[Action]:
        """Its launches wait at the gate from the next one on; who is as it should be already stays so."""
        del now
        roll = self._roll
        if event.all_offline:
            everybody = [roll.holders[slot] for slot in sorted(roll.holders)]  # by slot: their order is journaled
            chosen = [tenant for tenant in everybody if tenant.terms.kind is Kind.OFFLINE]
            chosen = [tenant for tenant in chosen if event.is_owner or tenant.uid == event.uid]
            chosen = [tenant for tenant in chosen if tenant.terms.gpu != NO_GPU]
        else:
            found = self._find_all(event)
            if isinstance(found, Reject):
                return [Refuse(roll.turn, event.peer, found)]
            ungated = [tenant.name for tenant in found if tenant.terms.gpu == NO_GPU]
            if ungated:
                detail = f"nothing holds {ungated[0]!r} back: the node knows no GPU; start it with --gpu NAME=MEMORY"
                return roll.refuse(event.peer, Reason.NO_GATE, detail)
            chosen = found
        for tenant in chosen:
            if tenant.paused != event.paused:
                roll.replace(msgspec.structs.replace(tenant, paused=event.paused))
        return [roll.confirm(event.peer, *chosen)]

    def evicted(self, event: EvictAsked, now: Instant) -> list[Action]:
        """Whoever is named ends, one step after the other; the answer does not wait for that."""
        found = self._find_all(event)
        if isinstance(found, Reject):
            return [Refuse(self._roll.turn, event.peer, found)]
        actions: list[Action] = []
        why = f"evicted: user {event.uid} asked for it"
        for tenant in found:
            actions += self._exits.begin(tenant.terms.slot, why, now, grace_ns=event.grace_ns, again=False)
        return [*actions, self._roll.confirm(event.peer, *found)]

    def reprioritized(self, event: PriorityChanged, now: Instant) -> list[Action]:
        """It comes before others from now on, or after them."""
        del now
        roll = self._roll
        tenant = roll.find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(roll.turn, event.peer, tenant)]
        if tenant.terms.priority == event.priority:
            return [roll.confirm(event.peer, tenant)]
        terms = msgspec.structs.replace(tenant.terms, priority=event.priority)
        tenant = msgspec.structs.replace(tenant, terms=terms)
        roll.replace(tenant)
        return [roll.grant(NO_PEER, tenant), roll.confirm(event.peer, tenant)]

    def resized(self, event: ShareChanged, now: Instant) -> list[Action]:
        """It has another share from its next launch on, or is held to its share in another way; if there is room."""
        del now
        roll = self._roll
        tenant = roll.find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(roll.turn, event.peer, tenant)]
        share_ppm = tenant.spec.share_ppm if event.share_ppm is None else event.share_ppm
        spec = msgspec.structs.replace(tenant.spec, share_ppm=share_ppm, limit=event.limit or tenant.spec.limit)
        if spec.limit is Limit.STATIC and not spec.share_ppm and spec != tenant.spec:
            detail = f"{tenant.name!r} would have no share to be held to; add --share, or --limit conserving"
            return roll.refuse(event.peer, Reason.NO_SHARE, detail)
        if spec == tenant.spec:
            return [roll.confirm(event.peer, tenant)]
        terms, gpu = msgspec.structs.replace(tenant.terms, share_ppm=share_ppm), tenant.terms.gpu
        if not tenant.standing.aside:
            objection = roll.rooms.objection_to_change(gpu, tenant.spec, spec)
            if objection is not None:
                return [Refuse(roll.turn, event.peer, objection)]
        tenant = self._promise(tenant, terms, spec)
        return [roll.grant(NO_PEER, tenant), roll.confirm(event.peer, tenant)]

    def reaimed(self, event: ObjectiveChanged, now: Instant) -> list[Action]:
        """It has another objective from its next request on, or none; where the last one goes, the rules come back."""
        del now
        roll = self._roll
        tenant = roll.find_tenant(event.name, event.uid, is_owner=event.is_owner)
        if isinstance(tenant, Reject):
            return [Refuse(roll.turn, event.peer, tenant)]
        if event.slo_ns and tenant.terms.kind is Kind.OFFLINE:
            detail = (
                f"{tenant.name!r} is offline and has no latency objective; run it with --online, or leave it as it is"
            )
            return roll.refuse(event.peer, Reason.NO_OBJECTIVE, detail)
        if tenant.terms.slo_ns == event.slo_ns:
            return [roll.confirm(event.peer, tenant)]
        terms = msgspec.structs.replace(tenant.terms, slo_ns=event.slo_ns)
        tenant = self._promise(tenant, terms, msgspec.structs.replace(tenant.spec, slo_ns=event.slo_ns))
        if not event.slo_ns and terms.gpu in roll.seats.dials:  # no seat says it, but what its device keeps is for it
            roll.seats.say_all(terms.gpu)
        return [roll.grant(NO_PEER, tenant), roll.confirm(event.peer, tenant)]

    def ruled(self, event: RulesChanged, now: Instant) -> list[Action]:
        """Other rules for all devices."""
        del now
        roll = self._roll
        if not event.is_owner:
            detail = "the rules of a node are changed by the user that runs it"
            return roll.refuse(event.peer, Reason.NOT_YOURS, detail)
        rules = event.change.applied(roll.rules)
        if rules != roll.rules:
            roll.rules = rules
            roll.rooms.ruled(rules)
            roll.say_all()
        return [roll.confirm(event.peer)]

    def _promise(self, tenant: Tenant, terms: Terms, spec: TenantSpec) -> Tenant:
        """The tenant with other promises: its device's room and what is predicted there follow."""
        roll, gpu = self._roll, terms.gpu
        roll.rooms.occupy(gpu, tenant.spec, -1)
        roll.rooms.occupy(gpu, spec, 1)
        if tenant.standing.aside:  # it has given up its promises, the old and the new
            roll.rooms.reserve(gpu, tenant.spec, 1)
            roll.rooms.reserve(gpu, spec, -1)
        tenant = msgspec.structs.replace(tenant, terms=terms, spec=spec)
        roll.replace(tenant)
        return tenant

    def _find_all(self, event: TenantsPaused | EvictAsked) -> list[Tenant] | Reject:
        """All who are named, or what is against the first of them that somebody cannot have changed."""
        chosen = []
        for name in event.names:
            found = self._roll.find_tenant(name, event.uid, is_owner=event.is_owner)
            if isinstance(found, Reject):
                return found
            chosen.append(found)
        return chosen
