"""The events of requests: commands of operators, and messages of tenants' parents."""

from __future__ import annotations

from cotenant.node import wire
from cotenant.node.daemon.connection import PeerConnection
from cotenant.node.model.event import (
    DisruptionAnnounced,
    Event,
    EvictionRequested,
    ObjectiveChanged,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    ShareChanged,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantsPaused,
    TenantSuspended,
)


def command_event(peer: PeerConnection, command: wire.Command) -> Event:
    """Return the event of a command; its user id comes from the kernel (SO_PEERCRED)."""
    origin = (peer.number, peer.identity.uid, peer.is_operator)
    match command:
        case wire.Pause(names=names, all_offline=all_offline, paused=paused):
            return TenantsPaused(*origin, tuple(names), all_offline, paused)
        case wire.SetPriority(name=name, priority=priority):
            return PriorityChanged(*origin, name, priority)
        case wire.SetShare(name=name, share_ppm=share_ppm, limit=limit, memory_bytes=memory_bytes):
            return ShareChanged(*origin, name, share_ppm, limit, memory_bytes)
        case wire.SetObjective(name=name, slo_ns=slo_ns):
            return ObjectiveChanged(*origin, name, slo_ns)
        case wire.SetRules(change=change):
            return RulesChanged(peer.number, peer.is_operator, change)
        case wire.EvictTenants(names=names, grace_ns=grace_ns):
            return EvictionRequested(*origin, tuple(names), grace_ns)
        case wire.AnnounceDisruption(slot=slot, generation=generation, is_deleted=is_deleted, grace_ns=grace_ns):
            return DisruptionAnnounced(*origin, slot, generation, is_deleted, grace_ns)


def parent_event(peer: int, message: wire.ParentReport) -> Event:
    """Return the event of a message from a tenant's parent."""
    match message:
        case wire.Leave(ending=ending):
            return TenantLeft(peer, ending)
        case wire.Quit(grace_ns=grace_ns):
            return QuitRequested(peer, grace_ns)
        case wire.SuspendResult(ok=ok, detail=detail):
            return TenantSuspended(peer, ok, detail)
        case wire.RestoreResult(ok=ok, detail=detail):
            return TenantRestored(peer, ok, detail)
        case wire.RestartReport(ending=ending, restarts=restarts):
            return TenantRestarted(peer, ending, restarts)
