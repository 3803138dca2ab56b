"""How does a tenant go aside for others, and come back? Its memory moves to the host; its promises lapse meanwhile."""

from __future__ import annotations

import msgspec

from cotenant.domain.action import Action, Restore, Suspend
from cotenant.domain.event import TenantRestored, TenantSuspended
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.protect import GpuSample, Stage, Standing
from cotenant.domain.tenant import Tenant
from cotenant.machine.exits import Exits
from cotenant.machine.roll import Roll


class Suspensions:
    """Suspends and restores tenants of a roll; what cannot be suspended ends."""

    __slots__ = ("_exits", "_roll")

    def __init__(self, roll: Roll, exits: Exits) -> None:
        """Whom it suspends is in this roll."""
        self._roll = roll
        self._exits = exits

    def begin(self, slot: int, why: str, held_bytes: int, now: Instant) -> list[Action]:
        """Stop its launches, and let what it submitted run out."""
        tenant = self._roll.holders[slot]
        until_ns = now + self._roll.settings.limits.drain_ns
        standing = Standing(Stage.SUSPENDING, why, self._roll.turn, now, until_ns, held_bytes=held_bytes)
        self._roll.stand(tenant, standing)
        return []

    def drained(self, tenant: Tenant, now: Instant) -> list[Action]:
        """It has no work left: now its memory can move."""
        return [] if tenant.standing.firm else self._ask(tenant, now)

    def due(self, tenant: Tenant, now: Instant) -> list[Action]:
        """A deadline has come: of running out, of moving away, or of moving back."""
        standing = tenant.standing
        if standing.stage is Stage.SUSPENDING and not standing.firm:
            return self._ask(tenant, now)
        deed = "suspend" if standing.stage is Stage.SUSPENDING else "restore"
        return self._exits.begin(tenant.terms.slot, f"evicted: its parent did not {deed} it in time", now)

    def resumed(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Its parent is there again, and may not have heard what it was told."""
        match tenant.standing.stage:
            case Stage.SUSPENDING if tenant.standing.firm:
                return self._ask(tenant, now)
            case Stage.SUSPENDING:
                until_ns = now + self._roll.settings.limits.drain_ns
                self._roll.stand(tenant, msgspec.structs.replace(tenant.standing, until_ns=until_ns))
                return []
            case Stage.RESTORING:
                return self._bring_back(tenant, now)
        return []

    def suspended(self, event: TenantSuspended, now: Instant) -> list[Action]:
        """It is aside, or cannot go there: then it ends."""
        tenant = self._roll.of_peer(event.peer)
        if tenant is None or tenant.standing.stage is not Stage.SUSPENDING:
            return []
        if not event.ok:
            why = f"evicted: it could not be suspended ({event.detail or 'nobody knows why'})"
            return self._exits.begin(tenant.terms.slot, why, now)
        aside = {"stage": Stage.SUSPENDED, "since_ns": now, "until_ns": NEVER, "firm": False, "aside": True}
        self._roll.stand(tenant, msgspec.structs.replace(tenant.standing, **aside))
        return []

    def restored(self, event: TenantRestored, now: Instant) -> list[Action]:
        """It runs again, or stays aside until there is a better moment."""
        tenant = self._roll.of_peer(event.peer)
        if tenant is None or tenant.standing.stage is not Stage.RESTORING:
            return []
        if event.ok:
            self._roll.stand(tenant, Standing(turn=self._roll.turn, since_ns=now))
            return []
        why = f"suspended: it could not be restored ({event.detail or 'nobody knows why'})"
        aside = {"stage": Stage.SUSPENDED, "why": why, "since_ns": now, "until_ns": NEVER, "aside": True}
        self._roll.stand(tenant, msgspec.structs.replace(tenant.standing, **aside))
        return []

    def restarted(self, tenant: Tenant, now: Instant) -> list[Action]:
        """The program that was aside is gone, and the new one has its memory still to ask for, if there is room."""
        if tenant.standing.aside and not self._roll.rooms.has_room(tenant.terms.gpu, tenant.spec):
            why = f"evicted: it was started again while others had its place on GPU {tenant.terms.gpu}"
            return self._exits.begin(tenant.terms.slot, why, now)
        self._roll.stand(tenant, Standing(turn=self._roll.turn, since_ns=now))
        return []

    def seen(self, gpu: int, sample: GpuSample, now: Instant) -> list[Action]:
        """A healthy device was looked at: whoever has been aside for long enough and fits again comes back.

        Highest priority first, then who has waited longest; one that does not fit holds back those after it, or a
        large tenant would wait for ever.
        """
        limits = self._roll.settings.limits
        aside = [one for one in self._roll.on(gpu) if one.standing.stage is Stage.SUSPENDED]
        aside.sort(key=lambda one: (one.terms.priority, one.standing.since_ns, one.terms.slot))
        actions: list[Action] = []
        is_known = sample.memory_used_bytes >= 0 and sample.memory_bytes > 0
        free_bytes = sample.memory_bytes * limits.memory_calm_ppm // WHOLE_PPM - sample.memory_used_bytes
        for tenant in aside:
            wanted_bytes = tenant.standing.held_bytes or tenant.spec.memory_bytes
            waited = now - tenant.standing.since_ns >= limits.make_room_ns
            has_room = self._roll.rooms.has_room(gpu, tenant.spec) and (not is_known or wanted_bytes <= free_bytes)
            is_here = tenant.terms.slot in self._roll.peer_of
            if not (waited and has_room and is_here):
                break
            free_bytes -= wanted_bytes
            actions += self._bring_back(tenant, now)
        return actions

    def _ask(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Only its parent can do it: one that is away is waited for."""
        slot = tenant.terms.slot
        peer = self._roll.peer_of.get(slot)
        until_ns = NEVER if peer is None else now + self._roll.settings.limits.make_room_ns
        self._roll.stand(tenant, msgspec.structs.replace(tenant.standing, until_ns=until_ns, firm=True))
        return [] if peer is None else [Suspend(self._roll.turn, peer, slot, tenant.standing.why)]

    def _bring_back(self, tenant: Tenant, now: Instant) -> list[Action]:
        slot = tenant.terms.slot
        until_ns = now + self._roll.settings.limits.make_room_ns
        back = {"stage": Stage.RESTORING, "since_ns": now, "until_ns": until_ns, "aside": False}
        self._roll.stand(tenant, msgspec.structs.replace(tenant.standing, **back))
        return [Restore(self._roll.turn, self._roll.peer_of[slot], slot)]
