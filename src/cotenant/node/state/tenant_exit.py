"""Exit of a tenant in phases, each with a deadline, so that it does not harm other tenants.

Most harm under a shared MPS server comes from a process that dies with work in flight. So its launches stop first and
its submitted work finishes (draining); then it may launch what it needs for its exit, at the lowest priority, and its
program is asked to exit (terminating); then its launches stop for good (finishing); only then is it killed. The program
may exit in any phase, which its parent reports. docs/developer/decisions/0016 says why the node keeps the phases.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.node.model.action import Action, KillTenant, SignalKind, SignalTenant
from cotenant.node.model.protection import ExitPhase, Lifecycle
from cotenant.node.model.tenant import Tenant
from cotenant.node.state.registry import NO_GPU, NodeContext, TenantRegistry
from cotenant.units.instant import NEVER, SECOND_NS, Duration, Instant

ENDING: Final = frozenset({ExitPhase.DRAINING, ExitPhase.TERMINATING, ExitPhase.FINISHING, ExitPhase.KILLED})
_MIN_REPEAT_NS: Final = SECOND_NS
"""Minimum interval between repeated kills of a tenant that is still there."""
_MAX_REPEAT_NS: Final = 60 * SECOND_NS


class TenantExits:
    """Ends tenants."""

    __slots__ = ("_context", "_registry")

    def __init__(self, context: NodeContext, registry: TenantRegistry) -> None:
        """Bind the registry of the tenants."""
        self._context = context
        self._registry = registry

    # -- begin -------------------------------------------------------------------------------------------------

    def begin(
        self, slot: int, why: str, now: Instant, *, grace_ns: Duration = 0, may_restart: bool = True, drain: bool = True
    ) -> list[Action]:
        """Begin a tenant's exit; one that exits already exits no later.

        The program of a pod that drains after an error of its own now ends for this reason, such as the loss of its
        GPU, of which the error was a symptom.
        Without `drain` the tenant's work is not waited for: it is lost in any case.
        """
        tenant = self._registry.holders[slot]
        is_after_fault = tenant.lifecycle.phase is ExitPhase.DRAINING and not tenant.lifecycle.awaits_notice
        if tenant.lifecycle.phase in ENDING and not (tenant.spec.pod and is_after_fault):
            return self._shorten(tenant, grace_ns, may_restart=may_restart)
        limits = self._context.settings.limits
        tenant = self._with_cause(
            tenant, why, now, grace_ns or tenant.spec.grace_ns or limits.grace_ns, may_restart=may_restart
        )
        if tenant.spec.pod:
            return self._await_notice(tenant, now)
        if not drain or tenant.grant.gpu == NO_GPU:
            return self._terminate(tenant, now)
        return self._step(tenant, ExitPhase.DRAINING, now, now + limits.drain_ns)

    def begin_after_fault(self, slot: int, why: str, now: Instant, *, may_restart: bool) -> list[Action]:
        """Begin the exit of a program with a fatal error, which first may report it and exit by itself."""
        tenant = self._registry.holders[slot]
        limits = self._context.settings.limits
        if tenant.lifecycle.phase in ENDING:
            return []
        tenant = self._with_cause(tenant, why, now, tenant.spec.grace_ns or limits.grace_ns, may_restart=may_restart)
        until_ns = now + max(limits.drain_ns, limits.fault_grace_ns)
        return self._step(tenant, ExitPhase.DRAINING, now, until_ns, ignores_drain=True)

    def kill(self, slot: int, why: str, now: Instant, *, may_restart: bool) -> list[Action]:
        """End a tenant at once."""
        tenant = self._registry.holders[slot]
        if tenant.lifecycle.phase is ExitPhase.KILLED:
            return []
        if tenant.lifecycle.phase not in ENDING:
            tenant = self._with_cause(tenant, why, now, 0, may_restart=may_restart)
        return self._kill(tenant, now)

    def evict_at_once(self, slot: int, why: str, now: Instant) -> list[Action]:
        """Kill the processes of a tenant that is not to be trusted from the daemon; its parent reports the reason."""
        tenant = self._registry.holders[slot]
        if tenant.lifecycle.phase is ExitPhase.KILLED:
            return []
        if tenant.lifecycle.phase not in ENDING:
            tenant = self._with_cause(tenant, why, now, 0, may_restart=False)
        peer = self._registry.peer_of.get(slot)
        if peer is None:
            return self._kill_from_daemon(tenant, now)
        self._step(tenant, ExitPhase.KILLED, now, now + self._context.settings.limits.obey_ns)
        kill = msgspec.structs.replace(self._kill_action(tenant), keep_parent=True)
        return [self._signal(tenant, peer, "kill"), kill]

    def _with_cause(self, tenant: Tenant, why: str, now: Instant, grace_ns: Duration, *, may_restart: bool) -> Tenant:
        """Return the tenant with the cause of its exit, still in its old phase."""
        before = tenant.lifecycle
        cause = Lifecycle(
            before.phase, why, self._context.turn, now, NEVER, grace_ns, may_restart, suspended=before.suspended
        )
        return msgspec.structs.replace(tenant, lifecycle=cause)

    def _shorten(self, tenant: Tenant, grace_ns: Duration, *, may_restart: bool) -> list[Action]:
        """Shorten the grace of a tenant that exits already, or make its exit final."""
        lifecycle = tenant.lifecycle
        grace_ns = min(lifecycle.grace_ns, grace_ns or lifecycle.grace_ns)
        until_ns = lifecycle.until_ns
        if lifecycle.phase is ExitPhase.TERMINATING and until_ns != NEVER:
            until_ns = min(until_ns, lifecycle.since_ns + grace_ns)
        may_restart = lifecycle.may_restart and may_restart
        shorter = msgspec.structs.replace(lifecycle, grace_ns=grace_ns, until_ns=until_ns, may_restart=may_restart)
        self._registry.set_lifecycle(tenant, shorter)
        return []

    def _await_notice(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Pause the tenant of a pod until an operator has asked Kubernetes to evict the pod, for a limited time.

        A signal before that would count as a failure of the pod's job.
        """
        until_ns = now + self._context.settings.limits.pod_notice_ns
        return self._step(tenant, ExitPhase.DRAINING, now, until_ns, ignores_drain=True, awaits_notice=True)

    def announced(self, tenant: Tenant, now: Instant, *, is_deleted: bool, grace_ns: Duration) -> list[Action]:
        """Continue the exit of a tenant whose pod is deleted by its kubelet, or may be signalled by the node."""
        if not tenant.lifecycle.awaits_notice:
            return []
        if not is_deleted:
            return self._terminate(tenant, now)
        is_connected = tenant.grant.slot in self._registry.peer_of
        return self._step(tenant, ExitPhase.TERMINATING, now, now + grace_ns if is_connected else NEVER)

    # -- progress --------------------------------------------------------------------------------------------------

    def drained(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Begin the next phase if the current one waited for the tenant's work."""
        lifecycle = tenant.lifecycle
        if lifecycle.ignores_drain:
            return []
        if lifecycle.phase is ExitPhase.DRAINING:
            return self._terminate(tenant, now)
        return self._kill(tenant, now) if lifecycle.phase is ExitPhase.FINISHING else []

    def due(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Begin the next phase at the deadline."""
        match tenant.lifecycle.phase:
            case ExitPhase.DRAINING:
                return self._terminate(tenant, now)
            case ExitPhase.TERMINATING if tenant.grant.gpu != NO_GPU:
                return self._step(tenant, ExitPhase.FINISHING, now, now + self._context.settings.limits.drain_ns)
            case ExitPhase.TERMINATING | ExitPhase.FINISHING:
                return self._kill(tenant, now)
            case _:
                return self._kill_from_daemon(tenant, now)

    def resumed(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Repeat the current phase after the parent reconnected: earlier messages may be lost."""
        limits = self._context.settings.limits
        match tenant.lifecycle.phase:
            case ExitPhase.TERMINATING:
                return self._terminate(tenant, now)
            case ExitPhase.KILLED:
                return self._kill(tenant, now)
            case ExitPhase.DRAINING if tenant.lifecycle.awaits_notice:
                return self._await_notice(tenant, now)
            case phase:
                wait_ns = (
                    max(limits.drain_ns, limits.fault_grace_ns) if tenant.lifecycle.ignores_drain else limits.drain_ns
                )
                return self._step(tenant, phase, now, now + wait_ns, ignores_drain=tenant.lifecycle.ignores_drain)

    def reconnect_timed_out(self, tenant: Tenant) -> list[Action]:
        """Kill an exiting tenant whose parent did not reconnect."""
        return [self._kill_action(tenant)] if tenant.lifecycle.phase in ENDING else []

    def restarted(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Handle a restarted program: a fault of the old program does not concern the new one."""
        lifecycle = tenant.lifecycle
        if lifecycle.phase is ExitPhase.DRAINING and lifecycle.ignores_drain and not lifecycle.awaits_notice:
            self._registry.set_lifecycle(tenant, Lifecycle(since_ns=now, turn=self._context.turn))
            return []
        return self.resumed(tenant, now)

    # -- phases -----------------------------------------------------------------------------------------------------

    def _step(
        self,
        tenant: Tenant,
        phase: ExitPhase,
        now: Instant,
        until_ns: Instant,
        *,
        ignores_drain: bool = False,
        awaits_notice: bool = False,
    ) -> list[Action]:
        flags = {"ignores_drain": ignores_drain, "awaits_notice": awaits_notice}
        changed = {"phase": phase, "since_ns": now, "until_ns": until_ns, **flags}
        self._registry.set_lifecycle(tenant, msgspec.structs.replace(tenant.lifecycle, **changed))
        return []

    def _terminate(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Ask the program to exit; only its parent can, so a disconnected one is waited for."""
        peer = self._registry.peer_of.get(tenant.grant.slot)
        self._step(tenant, ExitPhase.TERMINATING, now, NEVER if peer is None else now + tenant.lifecycle.grace_ns)
        return [] if peer is None else [self._signal(tenant, peer, "term")]

    def _kill(self, tenant: Tenant, now: Instant) -> list[Action]:
        peer = self._registry.peer_of.get(tenant.grant.slot)
        if peer is None:
            return self._kill_from_daemon(tenant, now)
        self._step(tenant, ExitPhase.KILLED, now, now + self._context.settings.limits.obey_ns)
        return [self._signal(tenant, peer, "kill")]

    def _kill_from_daemon(self, tenant: Tenant, now: Instant) -> list[Action]:
        """Kill from the daemon, and repeat at growing intervals while the tenant remains."""
        lifecycle = tenant.lifecycle
        since_ns = lifecycle.since_ns if lifecycle.phase is ExitPhase.KILLED else now
        wait_ns = max(self._context.settings.limits.obey_ns, min(max(now - since_ns, _MIN_REPEAT_NS), _MAX_REPEAT_NS))
        killed = {"phase": ExitPhase.KILLED, "since_ns": since_ns, "until_ns": now + wait_ns, "ignores_drain": False}
        killed |= {"awaits_notice": False}
        self._registry.set_lifecycle(tenant, msgspec.structs.replace(lifecycle, **killed))
        return [self._kill_action(tenant)]

    def _signal(self, tenant: Tenant, peer: int, kind: SignalKind) -> SignalTenant:
        grant, lifecycle = tenant.grant, tenant.lifecycle
        return SignalTenant(
            self._context.turn, peer, grant.slot, grant.generation, kind, lifecycle.why, lifecycle.may_restart
        )

    def _kill_action(self, tenant: Tenant) -> KillTenant:
        return KillTenant(self._context.turn, tenant.grant.gpu, tenant.grant.slot, tenant.pid, tenant.lifecycle.why)
