"""How does a decision read? One line per turn: when, what happened, what was done about it."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.domain.action import Action, Crowd, Grant, Refuse, Revoke, Stop
from cotenant.domain.event import (
    Event,
    NodeRestored,
    NodeStarted,
    NodeStopping,
    PeerLost,
    TenantJoined,
    TenantLeft,
    TenantResumed,
)
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, TenantSpec
from cotenant.format.quantity import format_duration, format_share, format_size


def describe_turn(now: Instant, event: Event, actions: Sequence[Action]) -> str:
    """The whole turn in one line."""
    deeds = "; ".join(describe_action(action) for action in actions) or "nothing to do"
    line = f"{now // SECOND_NS}.{now % SECOND_NS:09d} {describe_event(event)} -> {deeds}"
    # How it ended is the tenant's own word: it may hold line breaks, or what moves a terminal's cursor.
    return line if line.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def describe_spec(spec: TenantSpec) -> str:
    """What a tenant asks for, without what it does not ask for."""
    words = [spec.kind.value, f"priority {spec.priority}"]
    if spec.slo_ns:
        words.append(f"slo {format_duration(spec.slo_ns)}")
    if spec.memory_bytes:
        words.append(f"memory {format_size(spec.memory_bytes)}")
    if spec.share_ppm:
        words.append(f"share {format_share(spec.share_ppm)}")
    return " ".join(words)


def describe_event(event: Event) -> str:
    """What happened."""
    match event:
        case NodeStarted(settings=settings):
            return (
                f"node started: {settings.slots} slots, {len(settings.gpus)} GPUs, {settings.place}, {settings.admit}"
            )
        case NodeRestored(tenants=tenants, turn=turn):
            return f"node restored at turn {turn} with {len(tenants)} tenants"
        case TenantJoined(peer=peer, spec=spec):
            return f"peer {peer} joins as {spec.name or 'unnamed'}: {describe_spec(spec)}"
        case TenantResumed(peer=peer, slot=slot, generation=generation):
            return f"peer {peer} resumes slot {slot}/{generation}"
        case TenantLeft(peer=peer, ending=ending):
            return f"peer {peer} leaves: {ending}"
        case PeerLost(peer=peer):
            return f"peer {peer} lost"
        case NodeStopping(reason=reason):
            return f"node stops: {reason}"
        case _:
            return "woke"


def _neighbours(count: int) -> str:
    more = " or more" if count >= NEIGHBOURS_LIMIT else ""
    return f"{count or 'no'}{more} neighbour{'' if count == 1 else 's'}"


def describe_action(action: Action) -> str:
    """What was done."""
    match action:
        case Grant(tenant=tenant, terms=terms, neighbours=neighbours):
            where = f" on GPU {terms.gpu}" if terms.gpu >= 0 else ""
            beside = f" with {_neighbours(neighbours)}" if neighbours else ""
            return f"grant {tenant} slot {terms.slot}/{terms.generation}{where}{beside}"
        case Refuse(peer=peer, reject=reject):
            return f"refuse peer {peer}: {reject.reason.value}: {reject.detail}"
        case Revoke(tenant=tenant, slot=slot, generation=generation, ending=ending):
            return f"free slot {slot}/{generation} of {tenant}: {ending}"
        case Crowd(slots=slots, neighbours=neighbours):
            return f"tell slot {', '.join(map(str, slots))}: {_neighbours(neighbours)}"
        case Stop(reason=reason):
            return f"stop: {reason}"
