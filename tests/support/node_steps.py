"""Checks that each lifecycle step of a tenant is legal and is reported to its parent in the same turn."""

from collections.abc import Mapping, Sequence

from cotenant.node.model.action import (
    NO_PEER,
    Action,
    KillTenant,
    ReportGpuHealth,
    RestoreTenant,
    SignalTenant,
    SuspendTenant,
)
from cotenant.node.model.event import Event, TenantHung, TenantRestarted, TenantRestored
from cotenant.node.model.protection import Lifecycle
from cotenant.node.model.tenant import Tenant
from tests.support.protection_nodes import STEPS, SUSPENSIONS, B, D, F, G, K, R, S, T

EXITING = (D, T, F, K)


def check_steps(
    event: Event,
    before: Mapping[int, Tenant],
    after: Mapping[int, Tenant],
    actions: Sequence[Action],
    peers: Mapping[int, int],
) -> None:
    """Check every tenant that was present before and still is, and every new tenant."""
    messages = [
        action for action in actions if isinstance(action, SignalTenant | KillTenant | SuspendTenant | RestoreTenant)
    ]
    for slot, tenant in after.items():
        previous = before.get(slot)
        if previous is None or previous.grant.generation != tenant.grant.generation:
            assert tenant.lifecycle.phase is R or any(isinstance(action, ReportGpuHealth) for action in actions)
            continue
        old, new = previous.lifecycle, tenant.lifecycle
        assert old.phase is new.phase or _is_legal(event, old, new), (old.phase, new.phase, event)
        assert old.phase in EXITING or new.phase not in EXITING or new.why
        reported = [message for message in messages if message.slot == slot]
        peer, generation = peers[slot], tenant.grant.generation
        if new.phase is T and old.phase is not T and peer != NO_PEER:
            assert reported == [
                SignalTenant(reported[0].cause, peer, slot, generation, "term", new.why, new.may_restart)
            ]
        if new.phase is K and old.phase is not K:
            assert [type(message) for message in reported] == [KillTenant if peer == NO_PEER else SignalTenant]
        if new.phase in (R, D, F, S):
            assert reported == []


def _is_legal(event: Event, old: Lifecycle, new: Lifecycle) -> bool:
    step = (old.phase, new.phase)
    is_killed_at_once = new.phase is K and isinstance(event, TenantHung)
    is_forgiven = isinstance(event, TenantRestarted) and step == (D, R) and old.ignores_drain
    is_evicted = old.phase in (G, S, B) and new.phase in (D, T)
    # A tenant that runs again on a device over its limit is removed in the same turn.
    is_removed_again = isinstance(event, TenantRestarted | TenantRestored) and new.phase in (D, G)
    return step in STEPS | SUSPENSIONS or is_killed_at_once or is_forgiven or is_evicted or is_removed_again
