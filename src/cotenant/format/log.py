"""How does a decision read? One line per turn: when, what happened, what was done about it."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.domain.action import Action, Confirm, Crowd, Grant, Refuse, Revoke, Rise, Roster, Sit, Stop
from cotenant.domain.event import (
    Event,
    GateChange,
    GpusFound,
    NodeRestored,
    NodeStarted,
    NodeStopping,
    PeerLost,
    PriorityChanged,
    RulesChanged,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TenantsPaused,
)
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, TenantSpec
from cotenant.format.quantity import format_duration, format_share, format_size


def describe_turn(now: Instant, event: Event, actions: Sequence[Action]) -> str:
    """The whole turn in one line."""
    deeds = "; ".join(describe_action(action) for action in actions) or "nothing to do"
    return printable(f"{now // SECOND_NS}.{now % SECOND_NS:09d} {describe_event(event)} -> {deeds}")


def printable(line: str) -> str:
    """A line in which nothing moves a terminal's cursor: how it ended, say, is the tenant's own word."""
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
    if spec.gpu:
        words.append(f"on {spec.gpu}")
    return " ".join(words)


def describe_rules(rules: GateRules | GateChange) -> str:
    """By which rules tenants pass, or what changes about them."""
    words = [] if rules.policy is None else [rules.policy.value]
    for name, value, written in (
        ("bound", rules.bound_ns, format_duration),
        ("delay", rules.delay_ppm, format_share),
        ("patience", rules.patience_ns, format_duration),
        ("switch", rules.switch_ns, format_duration),
        ("spin", rules.spin_ppm, format_share),
    ):
        words += [] if value is None else [f"{name} {written(value)}"]
    return ", ".join(words) or "no change"


def _seat(seat: GateSeat) -> str:
    """A seat as slot/generation, its priority, and what is special about it."""
    least = f" least {format_share(seat.least_ppm)}" if seat.least_ppm else ""
    return f"[{seat.slot}/{seat.generation} at {seat.priority}{least}{' paused' if seat.paused else ''}]"


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
            return _wish(event)


def _wish(event: Event) -> str:
    """What somebody wants of the node while it runs, or that nobody wants anything."""
    match event:
        case TenantsPaused(peer=peer, names=names, all_offline=everybody, paused=paused):
            whom = "all offline tenants" if everybody else ", ".join(names)
            return f"peer {peer} {'pauses' if paused else 'resumes'} {whom}"
        case PriorityChanged(peer=peer, name=name, priority=priority):
            return f"peer {peer} sets the priority of {name} to {priority}"
        case RulesChanged(peer=peer, change=change):
            return f"peer {peer} sets the rules: {describe_rules(change)}"
        case GpusFound(gpus=gpus):
            return f"found {', '.join(gpu.name for gpu in gpus)}"
        case _:
            return "woke"


def _neighbours(count: int) -> str:
    more = " or more" if count >= NEIGHBOURS_LIMIT else ""
    return f"{count or 'no'}{more} neighbour{'' if count == 1 else 's'}"


def _whom(where: int | tuple[int, ...]) -> str:
    if isinstance(where, tuple):
        return f"slot {', '.join(map(str, where))}"
    return f"all on GPU {where}" if where >= 0 else "all"


def _said_at_gate(action: Roster | Sit | Rise) -> str:
    match action:
        case Roster(gpu=gpu, rules=rules):
            return f"roster of GPU {gpu}: {rules.policy.value}, {' '.join(map(_seat, rules.seats)) or 'nobody'}"
        case Sit(gpu=gpu, seat=seat):
            return f"seat at GPU {gpu}: {_seat(seat)}"
        case Rise(gpu=gpu, slot=slot):
            return f"no seat at GPU {gpu} for slot {slot}"


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
        case Crowd(where=where, neighbours=neighbours):
            return f"tell {_whom(where)}: {_neighbours(neighbours)}"
        case Roster() | Sit() | Rise():
            return _said_at_gate(action)
        case Confirm(peer=peer, tenants=tenants):
            return f"confirm to peer {peer}{': ' if tenants else ''}{', '.join(tenants)}"
        case Stop(reason=reason):
            return f"stop: {reason}"
