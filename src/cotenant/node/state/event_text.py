"""Sentences for single events and actions of protection."""

from __future__ import annotations

from typing import Final, NamedTuple

from cotenant.gate.grant import Grant, Kind
from cotenant.node.decision_log import cause_of
from cotenant.node.model.action import KillTenant, ReportGpuHealth, RestartMps, RestoreTenant, Stop, SuspendTenant
from cotenant.node.model.event import (
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpusFound,
    MemoryRequested,
    MpsStatusChanged,
    TenantFaulted,
    TenantHung,
    TenantRestarted,
    TenantRestored,
    TenantSuspended,
)
from cotenant.node.model.fault import MpsFault, Source, source_label
from cotenant.node.model.log_event import NO_GPU, LogEventKind, LogLevel
from cotenant.node.model.protection import Health
from cotenant.node.policy.protect.errors import classify
from cotenant.units.dispatch import handler
from cotenant.units.text import round_duration, round_size

OTHER_FAULT: Final = "unknown"
_HEALTH_LEVELS: Final = {
    Health.UNHEALTHY: LogLevel.WARNING,
    Health.OVERLIMIT: LogLevel.WARNING,
    Health.DISABLED: LogLevel.ERROR,
}


class TenantIdentity(NamedTuple):
    """The name and grant of a tenant."""

    name: str
    grant: Grant


class LogText(NamedTuple):
    """The text and attributes of a log event; without a GPU, the tenant's GPU applies."""

    what: LogEventKind
    text: str
    level: LogLevel = LogLevel.INFO
    gpu: int | None = None
    why: str = ""


NO_TENANT: Final = TenantIdentity("", Grant(-1, 0, Kind.OFFLINE, 0, 0, 0, 0, NO_GPU))


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _class_of(source: str, code: int) -> tuple[str, str]:
    """Return the name and description of an error's class."""
    try:
        found = classify(Source(source), code)
    except ValueError:
        return OTHER_FAULT, "an error of an unknown source"
    return found.name, found.description


def _restarted(event: TenantRestarted, who: TenantIdentity) -> LogText:
    times = "once" if event.restarts == 1 else f"{event.restarts} times"
    text = f"{who.name} was restarted ({times} so far) after: {event.ending}"
    return LogText(LogEventKind.RESTARTED, text, LogLevel.WARNING)


def _killed(action: KillTenant, who: TenantIdentity) -> LogText:
    return LogText(LogEventKind.KILLED, f"{who.name} is killed by the node: {cause_of(action.why)}", LogLevel.WARNING)


def _suspending(action: SuspendTenant, who: TenantIdentity) -> LogText:
    return LogText(
        LogEventKind.SUSPENDING, f"{who.name} is asked to move its device memory to the host: {cause_of(action.why)}"
    )


def _suspended(event: TenantSuspended, who: TenantIdentity) -> LogText:
    if event.ok:
        return LogText(LogEventKind.SUSPENDED, f"{who.name} is suspended: its device memory is on the host")
    text = f"{who.name} could not be suspended{_because(event.detail)}"
    return LogText(LogEventKind.SUSPEND_FAILED, text, LogLevel.WARNING)


def _restoring(action: RestoreTenant, who: TenantIdentity) -> LogText:
    del action
    return LogText(LogEventKind.RESTORING, f"{who.name} is asked to move its memory back to the device")


def _restored(event: TenantRestored, who: TenantIdentity) -> LogText:
    if event.ok:
        return LogText(LogEventKind.RESTORED, f"{who.name} runs again: its memory is back on the device")
    text = f"{who.name} could not be restored to the device{_because(event.detail)}"
    return LogText(LogEventKind.RESTORE_FAILED, text, LogLevel.WARNING)


def _wanted(event: MemoryRequested, who: TenantIdentity) -> LogText:
    size = round_size(event.bytes)
    text = f"{who.name} waits for {size} of device memory, which its quota allows and other tenants hold"
    return LogText(LogEventKind.MEMORY_REQUESTED, text, LogLevel.WARNING)


def _faulted(event: TenantFaulted, who: TenantIdentity) -> LogText:
    name, words = _class_of(event.source, event.code)
    text = f"{who.name} reported {source_label(event.source)} {event.code}: {words}"
    return LogText(LogEventKind.FAULTED, text, LogLevel.WARNING, why=name)


def _hangs(event: TenantHung, who: TenantIdentity) -> LogText:
    known = f", expected {round_duration(event.expected_ns)}" if event.expected_ns else ""
    kernel = f"kernel {event.kernel}" if event.kernel else "a kernel"
    text = f"{who.name} hangs: {kernel} has run for {round_duration(event.waited_ns)}{known}"
    return LogText(LogEventKind.HUNG, text, LogLevel.WARNING, why=_class_of(Source.HANG.value, 0)[0])


def _found(event: GpusFound, who: TenantIdentity) -> LogText:
    del who
    return LogText(LogEventKind.GPU_FOUND, f"new GPUs: {', '.join(gpu.name for gpu in event.gpus)}")


def _watched(action: ReportGpuHealth, who: TenantIdentity) -> LogText:
    del who
    watch = action.watch
    text = f"GPU {action.gpu} is {watch.health.value}{_because(watch.why)}"
    level = _HEALTH_LEVELS.get(watch.health, LogLevel.INFO)
    return LogText(LogEventKind.GPU_STATE, text, level, action.gpu, watch.health.value)


def _gpu_faulted(event: GpuFaulted, who: TenantIdentity) -> LogText:
    name, words = _class_of(Source.XID.value, event.xid)
    whose = f" of {who.name}" if who.name else ""
    text = f"GPU {event.gpu} reported Xid {event.xid}{whose}: {words}"
    return LogText(LogEventKind.GPU_FAULTED, text, LogLevel.WARNING, event.gpu, name)


def _gpu_lost(event: GpuLost, who: TenantIdentity) -> LogText:
    del who
    return LogText(
        LogEventKind.GPU_LOST, f"GPU {event.gpu} does not respond{_because(event.detail)}", LogLevel.ERROR, event.gpu
    )


def _gpu_back(event: GpuRecovered, who: TenantIdentity) -> LogText:
    del who
    return LogText(LogEventKind.GPU_RECOVERED, f"GPU {event.gpu} responds again", gpu=event.gpu)


def _mps_seen(event: MpsStatusChanged, who: TenantIdentity) -> LogText:
    del who
    if event.is_ready:
        return LogText(LogEventKind.MPS_READY, f"the MPS server of GPU {event.gpu} is ready", gpu=event.gpu)
    text = f"the MPS server of GPU {event.gpu} exited{_because(event.detail)}"
    name, _ = _class_of(Source.MPS.value, MpsFault.SERVER_DIED)
    return LogText(LogEventKind.MPS_EXITED, text, LogLevel.ERROR, event.gpu, name)


def _mps_restarted(action: RestartMps, who: TenantIdentity) -> LogText:
    del who
    return LogText(LogEventKind.MPS_RESTART, f"the MPS server of GPU {action.gpu} is restarted", gpu=action.gpu)


def _stopped(action: Stop, who: TenantIdentity) -> LogText:
    del who
    return LogText(LogEventKind.STOPPED, f"node stops: {action.reason}")


FORMATTERS: Final = dict(
    (
        handler(TenantRestarted, _restarted),
        handler(KillTenant, _killed),
        handler(SuspendTenant, _suspending),
        handler(TenantSuspended, _suspended),
        handler(RestoreTenant, _restoring),
        handler(TenantRestored, _restored),
        handler(MemoryRequested, _wanted),
        handler(TenantFaulted, _faulted),
        handler(TenantHung, _hangs),
        handler(GpusFound, _found),
        handler(ReportGpuHealth, _watched),
        handler(GpuFaulted, _gpu_faulted),
        handler(GpuLost, _gpu_lost),
        handler(GpuRecovered, _gpu_back),
        handler(MpsStatusChanged, _mps_seen),
        handler(RestartMps, _mps_restarted),
        handler(Stop, _stopped),
    )
)
"""By type of event or action."""
