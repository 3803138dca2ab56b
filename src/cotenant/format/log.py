"""How does a decision read? One line per turn: when, what happened, what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.domain.action import (
    NO_PEER,
    Action,
    Adjusted,
    Confirm,
    Crowd,
    Grant,
    Kill,
    MpsRestart,
    Placed,
    Refuse,
    Restore,
    Revoke,
    Rise,
    Roster,
    Signal,
    Sit,
    Stop,
    Suspend,
    Watch,
)
from cotenant.domain.control import Adjustment
from cotenant.domain.event import (
    Event,
    EvictAsked,
    GateChange,
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpuSeen,
    GpusFound,
    MemoryWanted,
    MpsSeen,
    NodeRestored,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
    ShareChanged,
    SharesAdjusted,
    TenantDrained,
    TenantFaulted,
    TenantHangs,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.domain.fault import called
from cotenant.domain.gate import GateRules, GateSeat, Limit
from cotenant.domain.instant import SECOND_NS, Duration, Instant
from cotenant.domain.protect import GpuSample
from cotenant.domain.tenant import NEIGHBOURS_LIMIT, TenantSpec
from cotenant.format.quantity import (
    counted,
    format_duration,
    format_share,
    format_size,
    round_duration,
    round_share,
    round_size,
)

_DEEDS: Final = ("ended", "evicted", "killed", "suspended")


def describe_turn(now: Instant, event: Event, actions: Sequence[Action]) -> str:
    """The whole turn in one line."""
    deeds = "; ".join(describe_action(action) for action in actions) or "nothing to do"
    return printable(f"{now // SECOND_NS}.{now % SECOND_NS:09d} {describe_event(event)} -> {deeds}")


def printable(line: str) -> str:
    """A line in which nothing moves a terminal's cursor: how it ended, say, is the tenant's own word."""
    return line if line.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def cause_of(why: str) -> str:
    """Why something was done to a tenant, without the word for what was done: who tells it has said that already."""
    deed, _, cause = why.partition(": ")
    return cause if cause and deed in _DEEDS else why


def describe_spec(spec: TenantSpec) -> str:
    """What a tenant asks for, without what it does not ask for."""
    words = [spec.kind.value, f"priority {spec.priority}"]
    if spec.slo_ns:
        words.append(f"slo {format_duration(spec.slo_ns)}")
    if spec.memory_bytes:
        words.append(f"memory {format_size(spec.memory_bytes)}")
    if spec.share_ppm:
        words.append(f"share {format_share(spec.share_ppm)}{_held_to(spec.limit)}")
    if spec.gpu:
        words.append(f"on {spec.gpu}")
    return " ".join(words)


def _held_to(limit: Limit) -> str:
    return "" if limit is Limit.OFF else f" {limit.value}"


def describe_share(change: ShareChanged) -> str:
    """What changes about a share."""
    words = [] if change.share_ppm is None else [f"a share of {format_share(change.share_ppm)}"]
    words += [] if change.limit is None else [f"limit {change.limit.value}"]
    return ", ".join(words) or "no other share"


def describe_objective(slo_ns: Duration) -> str:
    """What a tenant is promised."""
    return f"an objective of {format_duration(slo_ns)}" if slo_ns else "no objective"


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
    most = "at most" if seat.static else "among equals"
    least += f" {most} {format_share(seat.limit_ppm)}" if seat.limit_ppm else ""
    state = f"{' paused' if seat.paused else ''}{' ending' if seat.ending else ''}"
    return f"[{seat.slot}/{seat.generation} at {seat.priority}{least}{state}]"


def describe_event(event: Event) -> str:
    """What happened."""
    match event:
        case NodeStarted(settings=settings):
            return (
                f"node started: {counted(settings.slots, 'slot')}, {counted(len(settings.gpus), 'GPU')}, "
                f"{settings.place}, {settings.admit}"
            )
        case NodeRestored(tenants=tenants, turn=turn):
            return f"node restored at turn {turn} with {counted(len(tenants), 'tenant')}"
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
    """What somebody wants of the node while it runs."""
    match event:
        case TenantsPaused(peer=peer, names=names, all_offline=everybody, paused=paused):
            whom = "all offline tenants" if everybody else ", ".join(names)
            return f"peer {peer} {'pauses' if paused else 'resumes'} {whom}"
        case PriorityChanged(peer=peer, name=name, priority=priority):
            return f"peer {peer} sets the priority of {name} to {priority}"
        case ShareChanged(peer=peer, name=name):
            return f"peer {peer} gives {name} {describe_share(event)}"
        case ObjectiveChanged(peer=peer, name=name, slo_ns=slo_ns):
            return f"peer {peer} gives {name} {describe_objective(slo_ns)}"
        case RulesChanged(peer=peer, change=change):
            return f"peer {peer} sets the rules: {describe_rules(change)}"
        case EvictAsked(peer=peer, names=names, grace_ns=grace_ns):
            return f"peer {peer} evicts {', '.join(names)}{_grace(grace_ns)}"
        case QuitAsked(peer=peer, grace_ns=grace_ns):
            return f"peer {peer} asks to end{_grace(grace_ns)}"
        case _:
            return _told(event)


def _told(event: Event) -> str:
    """What a tenant's parent tells of its program, or what was heard of a device."""
    match event:
        case TenantSuspended(peer=peer, ok=ok, detail=detail):
            return f"peer {peer} {'suspended' if ok else 'could not suspend'} its program{_because(detail)}"
        case TenantRestored(peer=peer, ok=ok, detail=detail):
            return f"peer {peer} {'restored' if ok else 'could not restore'} its program{_because(detail)}"
        case TenantRestarted(peer=peer, ending=ending, restarts=restarts):
            return f"peer {peer} started its program again ({restarts} times by now): {ending}"
        case GpusFound(gpus=gpus):
            return f"found {', '.join(gpu.name for gpu in gpus)}"
        case GpuLost(gpu=gpu, detail=detail):
            return f"GPU {gpu} is lost{_because(detail)}"
        case GpuBack(gpu=gpu):
            return f"GPU {gpu} is back"
        case MpsSeen(gpu=gpu, is_ready=is_ready, detail=detail):
            return f"the MPS server of GPU {gpu} is {'there' if is_ready else 'gone'}{_because(detail)}"
        case _:
            return _seen(event)


def _grace(grace_ns: int) -> str:
    return f" within {format_duration(grace_ns)}" if grace_ns else ""


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _seen(event: Event) -> str:
    """What was seen of a device or of a tenant on it, or that nothing was."""
    match event:
        case GpuSeen(gpu=gpu, sample=sample):
            return f"saw GPU {gpu}: {describe_sample(sample)}"
        case GpuFaulted(gpu=gpu, xid=xid, slot=slot, generation=generation):
            return f"GPU {gpu} reports Xid {xid}{f' of slot {slot}/{generation}' if slot >= 0 else ''}"
        case TenantFaulted(slot=slot, generation=generation, source=source, code=code):
            return f"slot {slot}/{generation} met {called(source)} {code}"
        case TenantHangs(slot=slot, generation=generation, kernel=kernel, expected_ns=expected, waited_ns=waited):
            late = f"{round_duration(waited)} where {round_duration(expected)} is expected"
            return f"slot {slot}/{generation} hangs in {kernel or 'a kernel'}: {late}"
        case SharesAdjusted(adjustment=adjustment):
            return f"online of GPU {adjustment.gpu} is to keep {describe_adjustment(adjustment)}"
        case TenantDrained(slot=slot, generation=generation):
            return f"slot {slot}/{generation} has no work left"
        case MemoryWanted(slot=slot, generation=generation, bytes=wanted):
            return f"slot {slot}/{generation} waits for {round_size(wanted)}"
        case _:
            return "woke"


def describe_adjustment(adjustment: Adjustment) -> str:
    """How much online work keeps, who has which share of that, and why."""
    divided = ", ".join(f"slot {slot} {round_share(share_ppm)}" for slot, share_ppm in adjustment.shares)
    equals = f" ({divided} among equals)" if divided else ""
    whose = f" slot {adjustment.slot}/{adjustment.generation}" if adjustment.slot >= 0 else ""
    return f"{round_share(adjustment.online_ppm)}{equals}: {adjustment.cause.value}{whose}{_because(adjustment.detail)}"


def describe_sample(sample: GpuSample) -> str:
    """What a device told of itself."""
    words = [
        f"{name} {format_share(value)}"
        for name, value in (
            ("utilization", sample.utilization_ppm),
            ("SM activity", sample.sm_activity_ppm),
            ("clock", sample.clock_ppm),
        )
        if value >= 0
    ]
    if sample.memory_used_bytes >= 0 and sample.memory_bytes >= 0:
        words.append(f"memory {round_size(sample.memory_used_bytes)} of {format_size(sample.memory_bytes)}")
    return ", ".join(words) or "it tells nothing"


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
        case _:
            return _protected(action)


def _protected(action: Signal | Kill | Suspend | Restore | Watch | Adjusted | Placed | MpsRestart) -> str:
    """What was done to keep a device well."""
    match action:
        case Signal(peer=peer, slot=slot, generation=generation, kind=kind, why=why):
            whom = f"slot {slot}/{generation}" if peer == NO_PEER else f"peer {peer} of slot {slot}/{generation}"
            return f"tell {whom} to {'end' if kind == 'term' else 'kill'} its program: {why}"
        case Kill(slot=slot, pid=pid, why=why):
            return f"kill process {pid} of slot {slot}: {why}"
        case Suspend(peer=peer, slot=slot, why=why):
            return f"tell peer {peer} to suspend slot {slot}: {why}"
        case Restore(peer=peer, slot=slot):
            return f"tell peer {peer} to restore slot {slot}"
        case Watch(gpu=gpu, watch=watch):
            return f"GPU {gpu} is {watch.health.value}{_because(watch.why)}"
        case Adjusted(adjustment=adjustment, was_ppm=was_ppm):
            kept, was = round_share(adjustment.online_ppm), round_share(was_ppm)
            return f"online of GPU {adjustment.gpu} keeps {kept}{f', not {was}' if was != kept else ''}"
        case Placed(slot=slot, generation=generation, why=why):
            return f"slot {slot}/{generation} goes there: {why}"
        case MpsRestart(gpu=gpu):
            return f"start the MPS server of GPU {gpu} again"
