"""Text forms of the node's decisions: one line per turn with its instant, event and actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cotenant.gate.rules import GateEntry, GateRules, Limit
from cotenant.node.model.action import (
    NO_PEER,
    Action,
    Confirm,
    IssueGrant,
    KillTenant,
    RecordPlacement,
    Refuse,
    RemoveEntry,
    ReportGpuHealth,
    RestartMps,
    RestoreTenant,
    Revoke,
    SetNeighbourCount,
    SetOnlineShare,
    SetTenantTable,
    SignalTenant,
    Stop,
    SuspendTenant,
    UpsertEntry,
)
from cotenant.node.model.control import Adjustment
from cotenant.node.model.event import (
    DisruptionAnnounced,
    Event,
    EvictionRequested,
    GateChange,
    GpuCalibrated,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    GpusFound,
    MemoryBypassed,
    MemoryRequested,
    MpsStatusChanged,
    NodeReported,
    NodeRestored,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    OnlineShareProposed,
    PeerLost,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    SettingsChanged,
    ShareChanged,
    TenantDrained,
    TenantFaulted,
    TenantHung,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
)
from cotenant.node.model.fault import source_label
from cotenant.node.model.gpu import name_gpus
from cotenant.node.model.log_event import NO_GPU, LogEvent, LogLevel
from cotenant.node.model.protection import GpuSample
from cotenant.node.model.tenant import NEIGHBOURS_LIMIT, TenantSpec
from cotenant.units.instant import SECOND_NS, Duration, Instant
from cotenant.units.text import (
    counted,
    format_duration,
    format_share,
    format_size,
    round_duration,
    round_share,
    round_size,
)

_LEVEL_PREFIXES: Final = {LogLevel.INFO: "", LogLevel.WARNING: "warning: ", LogLevel.ERROR: "error: "}
_VERBS: Final = ("ended", "evicted", "killed", "suspended")


def describe_turn(now: Instant, event: Event, actions: Sequence[Action]) -> str:
    """Return the whole turn as one line."""
    described_actions = "; ".join(describe_action(action) for action in actions) or "no action"
    return printable(f"{now // SECOND_NS}.{now % SECOND_NS:09d} {describe_event(event)} -> {described_actions}")


def printable(line: str) -> str:
    """Return a line without control characters, which a tenant's own text may contain."""
    return line if line.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def cause_of(why: str) -> str:
    """Return the cause of an action without its leading verb, for sentences that contain the verb already."""
    verb, _, cause = why.partition(": ")
    return cause if cause and verb in _VERBS else why


def describe_bypass(event: MemoryBypassed) -> str:
    """Return the memory of a tenant that its hook did not see or its quota does not allow, as a clause."""
    parts = []
    if event.unseen_bytes:
        parts.append(f"{round_size(event.unseen_bytes)} that its hook did not see")
    if event.over_bytes:
        parts.append(f"{round_size(event.over_bytes)} more than its quota")
    return f"it uses {' and '.join(parts) or 'no memory beyond its limits'}, {round_size(event.held_bytes)} in total"


def describe_spec(spec: TenantSpec) -> str:
    """Return what a tenant requests, without what it does not request."""
    words = [spec.kind.value, f"priority {spec.priority}"]
    if spec.slo_ns:
        words.append(f"slo {format_duration(spec.slo_ns)}")
    if spec.memory_bytes:
        words.append(f"memory {format_size(spec.memory_bytes)}")
    if spec.share_ppm:
        words.append(f"share {format_share(spec.share_ppm)}{_limit_suffix(spec.limit)}")
    if spec.gpu:
        words.append(f"on {spec.gpu}")
    elif spec.gpu_count > 1:
        words.append(f"on {spec.gpu_count} GPUs")
    return " ".join(words)


def _limit_suffix(limit: Limit) -> str:
    return "" if limit is Limit.OFF else f" {limit.value}"


def describe_share(change: ShareChanged) -> str:
    """Return what changes about a reservation."""
    words = [] if change.share_ppm is None else [f"share {format_share(change.share_ppm)}"]
    words += [] if change.limit is None else [f"limit {change.limit.value}"]
    words += [] if change.memory_bytes is None else [f"memory {format_size(change.memory_bytes)}"]
    return ", ".join(words) or "no change"


def describe_objective(slo_ns: Duration) -> str:
    """Return a latency objective in words."""
    return f"latency objective {format_duration(slo_ns)}" if slo_ns else "no latency objective"


def describe_rules(rules: GateRules | GateChange) -> str:
    """Return gate rules, or what changes about them."""
    words = [] if rules.policy is None else [rules.policy.value]
    for name, value, format_value in (
        ("bound", rules.bound_ns, format_duration),
        ("delay", rules.delay_ppm, format_share),
        ("patience", rules.patience_ns, format_duration),
        ("switch", rules.switch_ns, format_duration),
        ("spin", rules.spin_ppm, format_share),
        ("SMs next to an active tenant", rules.sm_ppm, format_share),
    ):
        words += [] if value is None else [f"{name} {format_value(value)}"]
    return ", ".join(words) or "no change"


def _entry(entry: GateEntry) -> str:
    """Return a table entry: slot/generation, priority, and its guarantees and states."""
    words = [f"slot {entry.slot}/{entry.generation} priority {entry.priority}"]
    if entry.guaranteed_ppm:
        words.append(f"guaranteed {format_share(entry.guaranteed_ppm)}")
    if entry.limit_ppm:
        words.append(f"limit {format_share(entry.limit_ppm)}{'' if entry.static else ' among peers'}")
    words += ["paused"] if entry.paused else []
    words += ["exiting"] if entry.ending else []
    return f"[{', '.join(words)}]"


def describe_event(event: Event) -> str:
    """Return the event in words."""
    match event:
        case NodeStarted(settings=settings):
            return (
                f"node started: {counted(settings.slots, 'slot')}, {counted(len(settings.gpus), 'GPU')}, "
                f"place {settings.place}, admit {settings.admit}"
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
            return _command(event)


def _command(event: Event) -> str:
    """Return a command of an operator or of a tenant's parent in words."""
    match event:
        case TenantsPaused(peer=peer, names=names, all_offline=all_offline, paused=paused):
            targets = "all offline tenants" if all_offline else ", ".join(names)
            return f"peer {peer} {'pauses' if paused else 'resumes'} {targets}"
        case PriorityChanged(peer=peer, name=name, priority=priority):
            return f"peer {peer} sets the priority of {name} to {priority}"
        case ShareChanged(peer=peer, name=name):
            return f"peer {peer} changes {name}: {describe_share(event)}"
        case ObjectiveChanged(peer=peer, name=name, slo_ns=slo_ns):
            return f"peer {peer} changes {name}: {describe_objective(slo_ns)}"
        case RulesChanged(peer=peer, change=change):
            return f"peer {peer} changes the gate rules: {describe_rules(change)}"
        case EvictionRequested(peer=peer, names=names, grace_ns=grace_ns):
            return f"peer {peer} evicts {', '.join(names)}{_grace(grace_ns)}"
        case QuitRequested(peer=peer, grace_ns=grace_ns):
            return f"peer {peer} requests to exit{_grace(grace_ns)}"
        case _:
            return _report(event)


def _report(event: Event) -> str:
    """Return a report about a tenant's program or a device in words."""
    match event:
        case TenantSuspended(peer=peer, ok=ok, detail=detail):
            return f"peer {peer} {'suspended' if ok else 'could not suspend'} its program{_because(detail)}"
        case TenantRestored(peer=peer, ok=ok, detail=detail):
            return f"peer {peer} {'restored' if ok else 'could not restore'} its program{_because(detail)}"
        case TenantRestarted(peer=peer, ending=ending, restarts=restarts):
            return f"peer {peer} restarted its program ({restarts} times so far): {ending}"
        case GpusFound(gpus=gpus):
            return f"new GPUs: {', '.join(gpu.name for gpu in gpus)}"
        case GpuLost(gpu=gpu, detail=detail):
            return f"GPU {gpu} does not respond{_because(detail)}"
        case GpuRecovered(gpu=gpu):
            return f"GPU {gpu} responds again"
        case MpsStatusChanged(gpu=gpu, is_ready=is_ready, detail=detail):
            return f"the MPS server of GPU {gpu} {'is ready' if is_ready else 'exited'}{_because(detail)}"
        case _:
            return _measurement(event)


def _grace(grace_ns: int) -> str:
    return f" with grace {format_duration(grace_ns)}" if grace_ns else ""


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _measurement(event: Event) -> str:
    """Return what the monitor measured of a device or of a tenant on it in words."""
    match event:
        case GpuSampled(gpu=gpu, sample=sample):
            return f"sample of GPU {gpu}: {describe_sample(sample)}"
        case GpuFaulted(gpu=gpu, xid=xid, slot=slot, generation=generation):
            return f"GPU {gpu} reports Xid {xid}{f' of slot {slot}/{generation}' if slot >= 0 else ''}"
        case TenantFaulted(slot=slot, generation=generation, source=source, code=code):
            return f"slot {slot}/{generation} reports {source_label(source)} {code}"
        case TenantHung(slot=slot, generation=generation, kernel=kernel, expected_ns=expected, waited_ns=waited):
            times = f"it has run for {round_duration(waited)}, {round_duration(expected)} expected"
            return f"slot {slot}/{generation} hangs in {kernel or 'a kernel'}: {times}"
        case OnlineShareProposed(adjustment=adjustment):
            return f"control proposes for GPU {adjustment.gpu} online share {describe_adjustment(adjustment)}"
        case TenantDrained(slot=slot, generation=generation):
            return f"slot {slot}/{generation} is drained"
        case DisruptionAnnounced(slot=slot, generation=generation, is_deleted=is_deleted):
            return f"the pod of slot {slot}/{generation} {'is deleted' if is_deleted else 'is marked as disrupted'}"
        case _:
            return _memory_or_daemon(event)


def _memory_or_daemon(event: Event) -> str:
    """Return what happened to a tenant's memory, to the daemon itself, or what it measured of a device, in words."""
    match event:
        case GpuCalibrated(gpu=gpu, calibration=calibration):
            return f"GPU {gpu} was measured: {calibration.describe()}"
        case MemoryRequested(slot=slot, generation=generation, bytes=requested):
            return f"slot {slot}/{generation} requests {round_size(requested)} of device memory"
        case MemoryBypassed(slot=slot, generation=generation):
            return f"slot {slot}/{generation}: {describe_bypass(event)}"
        case SettingsChanged(detail=detail):
            return f"the settings change: {detail}"
        case NodeReported(text=text):
            return f"the daemon reports: {text}"
        case _:
            return "timer fired"


def describe_adjustment(adjustment: Adjustment) -> str:
    """Return the online share, its division among peers, and the cause."""
    shares = ", ".join(f"slot {slot} {round_share(share_ppm)}" for slot, share_ppm in adjustment.shares)
    peers = f" ({shares} among peers)" if shares else ""
    tenant = f" slot {adjustment.slot}/{adjustment.generation}" if adjustment.slot >= 0 else ""
    return f"{round_share(adjustment.online_ppm)}{peers}: {adjustment.cause.value}{tenant}{_because(adjustment.detail)}"


def describe_sample(sample: GpuSample) -> str:
    """Return the measurements of a device in words."""
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
    return ", ".join(words) or "no measurements"


def _or_more(count: int) -> str:
    return f"{count} or more" if count >= NEIGHBOURS_LIMIT else str(count)


def _neighbour_count(where: int | tuple[int, ...], count: int) -> str:
    if isinstance(where, tuple):
        targets = f"slot {', '.join(map(str, where))}"
    else:
        targets = f"GPU {where}" if where >= 0 else "the tenants without a GPU"
    return f"set neighbour count of {targets} to {_or_more(count)}"


def _table_change(action: SetTenantTable | UpsertEntry | RemoveEntry) -> str:
    match action:
        case SetTenantTable(gpu=gpu, rules=rules):
            return f"tenant table of GPU {gpu}: {rules.policy.value}, {' '.join(map(_entry, rules.entries)) or 'empty'}"
        case UpsertEntry(gpu=gpu, entry=entry):
            return f"table entry of GPU {gpu}: {_entry(entry)}"
        case RemoveEntry(gpu=gpu, slot=slot):
            return f"remove slot {slot} from the table of GPU {gpu}"


def describe_action(action: Action) -> str:
    """Return the action in words."""
    match action:
        case IssueGrant(tenant=tenant, grant=grant, neighbours=neighbours):
            where = f" on {name_gpus(grant.gpus)}" if grant.gpus else ""
            others = f" with {_or_more(neighbours)} neighbour{'' if neighbours == 1 else 's'}" if neighbours else ""
            return f"grant {tenant} slot {grant.slot}/{grant.generation}{where}{others}"
        case Refuse(peer=peer, reject=reject):
            return f"refuse peer {peer}: {reject.reason.value}: {reject.detail}"
        case Revoke(tenant=tenant, slot=slot, generation=generation, ending=ending):
            return f"free slot {slot}/{generation} of {tenant}: {ending}"
        case SetNeighbourCount(where=where, neighbours=neighbours):
            return _neighbour_count(where, neighbours)
        case SetTenantTable() | UpsertEntry() | RemoveEntry():
            return _table_change(action)
        case Confirm(peer=peer, tenants=tenants):
            return f"confirm to peer {peer}{': ' if tenants else ''}{', '.join(tenants)}"
        case Stop(reason=reason):
            return f"stop: {reason}"
        case _:
            return _protection(action)


def _protection(
    action: SignalTenant
    | KillTenant
    | SuspendTenant
    | RestoreTenant
    | ReportGpuHealth
    | SetOnlineShare
    | RecordPlacement
    | RestartMps,
) -> str:
    """Return an action of protection, control or placement in words."""
    match action:
        case SignalTenant(peer=peer, slot=slot, generation=generation, kind=kind, why=why):
            target = f"slot {slot}/{generation}" if peer == NO_PEER else f"peer {peer} of slot {slot}/{generation}"
            return f"ask {target} to {'terminate' if kind == 'term' else 'kill'} its program: {why}"
        case KillTenant(slot=slot, pid=pid, why=why):
            return f"kill process {pid} of slot {slot}: {why}"
        case SuspendTenant(peer=peer, slot=slot, why=why):
            return f"ask peer {peer} to suspend slot {slot}: {why}"
        case RestoreTenant(peer=peer, slot=slot):
            return f"ask peer {peer} to restore slot {slot}"
        case ReportGpuHealth(gpu=gpu, watch=watch):
            return f"GPU {gpu} is {watch.health.value}{_because(watch.why)}"
        case SetOnlineShare(adjustment=adjustment, was_ppm=was_ppm):
            share, was = round_share(adjustment.online_ppm), round_share(was_ppm)
            return f"online share of GPU {adjustment.gpu} set to {share}{f' (was {was})' if was != share else ''}"
        case RecordPlacement(slot=slot, generation=generation, why=why):
            return f"slot {slot}/{generation} placed: {why}"
        case RestartMps(gpu=gpu):
            return f"restart the MPS server of GPU {gpu}"


def line_of(log_event: LogEvent, when: str) -> str:
    """Return a log event as a line for people; `when` is the formatted time."""
    return f"{when} {_LEVEL_PREFIXES[log_event.level]}{log_event.text} [turn {log_event.turn}]"


def record_of(log_event: LogEvent, ts: str) -> dict[str, object]:
    """Return a log event as a record for programs; every record has every field."""
    return {
        "ts": ts,
        "level": log_event.level.value,
        "event": log_event.what.value,
        "tenant": log_event.tenant,
        "gpu": None if log_event.gpu == NO_GPU else log_event.gpu,
        "turn": log_event.turn,
        "why": log_event.why,
        "text": log_event.text,
    }
