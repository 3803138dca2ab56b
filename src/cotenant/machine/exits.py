"""How does a tenant end without harm to the others? Step by step, each with its deadline.

Most harm under a shared server comes from a process that dies with work in flight. So its launches stop first and what
it submitted runs out (draining); then it may launch what it needs to end, after everybody else, and its program is
asked to (terminating); then its launches stop for good and run out (finishing); and only then is it killed. The program
may end in any of these steps: its parent says so as always. docs/decisions/0016 says why the node keeps the steps.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.domain.action import Action, Kill, Signal, SignalKind
from cotenant.domain.instant import NEVER, SECOND_NS, Duration, Instant
from cotenant.domain.protect import Stage, Standing
from cotenant.domain.tenant import Tenant
from cotenant.machine.roll import NO_GPU, Roll

ENDING: Final = frozenset({Stage.DRAINING, Stage.TERMINATING, Stage.FINISHING, Stage.KILLED})
_AGAIN_NS: Final = SECOND_NS
"""Whoever is still there after having been killed is killed again, not sooner than after this."""
_SELDOM_NS: Final = 60 * SECOND_NS


class Exits:
    """Ends tenants of a roll."""

    __slots__ = ("_roll",)

    def __init__(self, roll: Roll) -> None:
        """Whom it ends is in this roll."""
        self._roll = roll

    # -- beginning -------------------------------------------------------------------------------------------------

    def begin(
        self, slot: int, why: str, now: Instant, *, grace_ns: Duration = 0, again: bool = True, drain: bool = True
    ) -> list[Action]:
        """Let a tenant end; one that already does ends no later for it.

        Without `drain` nothing is waited for: what it had submitted is lost anyway.
        """
        tenant = self._roll.holders[slot]
        if tenant.standing.stage in ENDING:
            return self._hurry(tenant, grace_ns, again=again)
        limits = self._roll.settings.limits
        tenant = self._with_cause(tenant, why, now, grace_ns or tenant.spec.grace_ns or limits.grace_ns, again=again)
        if not drain or tenant.terms.gpu == NO_GPU:
            return self._terminate(tenant, now)
        return self._step(tenant, Stage.DRAINING, now, now + limits.drain_ns)

    def begin_after_fault(self, slot: int, why: str, now: Instant, *, again: bool) -> list[Action]:
        """A program that met an error which it does not survive has a moment to say so and to end by itself."""
        tenant = self._roll.holders[slot]
        limits = self._roll.settings.limits
        if tenant.standing.stage in ENDING:
            return []
        tenant = self._with_cause(tenant, why, now, tenant.spec.grace_ns or limits.grace_ns, again=again)
        until_ns = now + max(limits.drain_ns, limits.fault_grace_ns)
        return self._step(tenant, Stage.DRAINING, now, until_ns, firm=True)

    def kill(self, slot: int, why: str, now: Instant, *, again: bool) -> list[Action]:
        """End a tenant at once: there is nothing to wait for."""
        tenant = self._roll.holders[slot]
        if tenant.standing.stage is Stage.KILLED:
            return []
        if tenant.standing.stage not in ENDING:
            tenant = self._with_cause(tenant, why, now, 0, again=again)
        return self._kill(tenant, now)

    def _with_cause(self, tenant: Tenant, why: str, now: Instant, grace_ns: Duration, *, again: bool) -> Tenant:
        """The tenant with why it ends, not yet in any stage of it."""
        before = tenant.standing
        cause = Standing(before.stage, why, self._roll.turn, now, NEVER, grace_ns, again, aside=before.aside)
        return msgspec.structs.replace(tenant, standing=cause)

    def _hurry(self, tenant: Tenant, grace_ns: Duration, *, again: bool) -> list[Action]:
        """It ends already: sooner, if less grace is given now; for good, if somebody wants that now."""
        standing = tenant.standing
        grace_ns = min(standing.grace_ns, grace_ns or standing.grace_ns)
        until_ns = standing.until_ns
        if standing.stage is Stage.TERMINATING and until_ns != NEVER:
            until_ns = min(until_ns, standing.since_ns + grace_ns)
        again = standing.again and again
        shorter = msgspec.structs.replace(standing, grace_ns=grace_ns, until_ns=until_ns, again=again)
        self._roll.stand(tenant, shorter)
        return []

    # -- going on --------------------------------------------------------------------------------------------------

    def drained(self, tenant: Tenant, now: Instant) -> list[Action]:
        """It has no work left; only if that was waited for does the next step come now."""
        standing = tenant.standing
        if standing.firm:
            return []
        if standing.stage is Stage.DRAINING:
            return self._terminate(tenant, now)
        return self._kill(tenant, now) if standing.stage is Stage.FINISHING else []

    def due(self, tenant: Tenant, now: Instant) -> list[Action]:
        """The deadline of its step has come."""
        match tenant.standing.stage:
            case Stage.DRAINING:
                return self._terminate(tenant, now)
            case Stage.TERMINATING if tenant.terms.gpu != NO_GPU:
                return self._step(tenant, Stage.FINISHING, now, now + self._roll.settings.limits.drain_ns)
            case Stage.TERMINATING | Stage.FINISHING:
                return self._kill(tenant, now)
            case _:
                return self._kill_ourselves(tenant, now)

    def resumed(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Its parent is there again: the step that it was in begins anew, for what was said then may be lost."""
        limits = self._roll.settings.limits
        match tenant.standing.stage:
            case Stage.TERMINATING:
                return self._terminate(tenant, now)
            case Stage.KILLED:
                return self._kill(tenant, now)
            case stage:
                wait_ns = max(limits.drain_ns, limits.fault_grace_ns) if tenant.standing.firm else limits.drain_ns
                return self._step(tenant, stage, now, now + wait_ns, firm=tenant.standing.firm)

    def given_up(self, tenant: Tenant) -> list[Action]:
        """It was to end, and its parent did not come back: nobody else is there to end it."""
        return [self._kill_action(tenant)] if tenant.standing.stage in ENDING else []

    def restarted(self, tenant: Tenant, now: Instant) -> list[Action]:
        """The program ended and another runs in its place: an error of the old one is not the new one's."""
        standing = tenant.standing
        if standing.stage is Stage.DRAINING and standing.firm:
            self._roll.stand(tenant, Standing(since_ns=now, turn=self._roll.turn))
            return []
        return self.resumed(tenant, now)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _step(
        self, tenant: Tenant, stage: Stage, now: Instant, until_ns: Instant, *, firm: bool = False
    ) -> list[Action]:
        changed = {"stage": stage, "since_ns": now, "until_ns": until_ns, "firm": firm}
        self._roll.stand(tenant, msgspec.structs.replace(tenant.standing, **changed))
        return []

    def _terminate(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Nobody but its parent can ask a program to end: one that is away is waited for."""
        peer = self._roll.peer_of.get(tenant.terms.slot)
        self._step(tenant, Stage.TERMINATING, now, NEVER if peer is None else now + tenant.standing.grace_ns)
        return [] if peer is None else [self._signal(tenant, peer, "term")]

    def _kill(self, tenant: Tenant, now: Instant) -> list[Action]:
        peer = self._roll.peer_of.get(tenant.terms.slot)
        if peer is None:
            return self._kill_ourselves(tenant, now)
        self._step(tenant, Stage.KILLED, now, now + self._roll.settings.limits.obey_ns)
        return [self._signal(tenant, peer, "kill")]

    def _kill_ourselves(self, tenant: Tenant, now: Instant) -> list[Action]:
        """And again if that did not help, ever more seldom: what a kernel does not let go of, no further kill ends."""
        standing = tenant.standing
        since_ns = standing.since_ns if standing.stage is Stage.KILLED else now
        wait_ns = max(self._roll.settings.limits.obey_ns, min(max(now - since_ns, _AGAIN_NS), _SELDOM_NS))
        killed = {"stage": Stage.KILLED, "since_ns": since_ns, "until_ns": now + wait_ns, "firm": False}
        self._roll.stand(tenant, msgspec.structs.replace(standing, **killed))
        return [self._kill_action(tenant)]

    def _signal(self, tenant: Tenant, peer: int, kind: SignalKind) -> Signal:
        terms, standing = tenant.terms, tenant.standing
        return Signal(self._roll.turn, peer, terms.slot, terms.generation, kind, standing.why, standing.again)

    def _kill_action(self, tenant: Tenant) -> Kill:
        return Kill(self._roll.turn, tenant.terms.gpu, tenant.terms.slot, tenant.pid, tenant.standing.why)
