"""Sentences for single events and actions of protection."""

from __future__ import annotations

from typing import Final, NamedTuple

from cotenant.gate.grant import Grant, Kind
from cotenant.node.decision_log import cause_of, describe_bypass
from cotenant.node.model.action import KillTenant, ReportGpuHealth, RestartMps, RestoreTenant, Stop, SuspendTenant
from cotenant.node.model.event import (
    GpuCalibrated,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpusFound,
    MemoryBypassed,
    MemoryRequested,
    MpsStatusChanged,
    NodeReported,
    SettingsChanged,
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

    kind: LogEventKind
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
        error = classify(Source(source), code)
    except ValueError:
        return OTHER_FAULT, "an error of an unknown source"
    return error.name, error.description


def _restarted(event: TenantRestarted, tenant: TenantIdentity) -> LogText:
    times = "once" if event.restarts == 1 else f"{event.restarts} times"
    text = f"{tenant.name} was restarted ({times} so far) after: {event.ending}"
    return LogText(LogEventKind.RESTARTED, text, LogLevel.WARNING)


def _killed(action: KillTenant, tenant: TenantIdentity) -> LogText:
    return LogText(
        LogEventKind.KILLED, f"{tenant.name} is killed by the node: {cause_of(action.why)}", LogLevel.WARNING
    )


def _suspending(action: SuspendTenant, tenant: TenantIdentity) -> LogText:
    return LogText(
        LogEventKind.SUSPENDING, f"{tenant.name} is asked to move its device memory to the host: {cause_of(action.why)}"
    )


def _suspended(event: TenantSuspended, tenant: TenantIdentity) -> LogText:
    if event.ok:
        return LogText(LogEventKind.SUSPENDED, f"{tenant.name} is suspended: its device memory is on the host")
    text = f"{tenant.name} could not be suspended{_because(event.detail)}"
    return LogText(LogEventKind.SUSPEND_FAILED, text, LogLevel.WARNING)


def _restoring(action: RestoreTenant, tenant: TenantIdentity) -> LogText:
    del action
    return LogText(LogEventKind.RESTORING, f"{tenant.name} is asked to move its memory back to the device")


def _restored(event: TenantRestored, tenant: TenantIdentity) -> LogText:
    if event.ok:
        return LogText(LogEventKind.RESTORED, f"{tenant.name} runs again: its memory is back on the device")
    text = f"{tenant.name} could not be restored to the device{_because(event.detail)}"
    return LogText(LogEventKind.RESTORE_FAILED, text, LogLevel.WARNING)


def _memory_requested(event: MemoryRequested, tenant: TenantIdentity) -> LogText:
    size = round_size(event.bytes)
    text = f"{tenant.name} waits for {size} of device memory, which its quota allows and other tenants hold"
    return LogText(LogEventKind.MEMORY_REQUESTED, text, LogLevel.WARNING)


def _memory_bypassed(event: MemoryBypassed, tenant: TenantIdentity) -> LogText:
    if not event.unseen_bytes and not event.over_bytes:
        return LogText(
            LogEventKind.MEMORY_SEEN, f"{tenant.name} uses only memory that its hook sees and its quota allows"
        )
    text = f"{tenant.name} bypasses its limits: {describe_bypass(event)}"
    return LogText(LogEventKind.MEMORY_BYPASSED, text, LogLevel.WARNING)


def _faulted(event: TenantFaulted, tenant: TenantIdentity) -> LogText:
    name, description = _class_of(event.source, event.code)
    text = f"{tenant.name} reported {source_label(event.source)} {event.code}: {description}"
    return LogText(LogEventKind.FAULTED, text, LogLevel.WARNING, why=name)


def _hung(event: TenantHung, tenant: TenantIdentity) -> LogText:
    expected = f", expected {round_duration(event.expected_ns)}" if event.expected_ns else ""
    kernel = f"kernel {event.kernel}" if event.kernel else "a kernel"
    text = f"{tenant.name} hangs: {kernel} has run for {round_duration(event.waited_ns)}{expected}"
    return LogText(LogEventKind.HUNG, text, LogLevel.WARNING, why=_class_of(Source.HANG.value, 0)[0])


def _gpus_found(event: GpusFound, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(LogEventKind.GPU_FOUND, f"new GPUs: {', '.join(gpu.name for gpu in event.gpus)}")


def _gpu_health(action: ReportGpuHealth, tenant: TenantIdentity) -> LogText:
    del tenant
    watch = action.watch
    text = f"GPU {action.gpu} is {watch.health.value}{_because(watch.why)}"
    level = _HEALTH_LEVELS.get(watch.health, LogLevel.INFO)
    return LogText(LogEventKind.GPU_STATE, text, level, action.gpu, watch.health.value)


def _gpu_faulted(event: GpuFaulted, tenant: TenantIdentity) -> LogText:
    name, description = _class_of(Source.XID.value, event.xid)
    owner = f" of {tenant.name}" if tenant.name else ""
    text = f"GPU {event.gpu} reported Xid {event.xid}{owner}: {description}"
    return LogText(LogEventKind.GPU_FAULTED, text, LogLevel.WARNING, event.gpu, name)


def _gpu_lost(event: GpuLost, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(
        LogEventKind.GPU_LOST, f"GPU {event.gpu} does not respond{_because(event.detail)}", LogLevel.ERROR, event.gpu
    )


def _gpu_recovered(event: GpuRecovered, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(LogEventKind.GPU_RECOVERED, f"GPU {event.gpu} responds again", gpu=event.gpu)


def _mps_status(event: MpsStatusChanged, tenant: TenantIdentity) -> LogText:
    del tenant
    if event.is_ready:
        return LogText(LogEventKind.MPS_READY, f"the MPS server of GPU {event.gpu} is ready", gpu=event.gpu)
    text = f"the MPS server of GPU {event.gpu} exited{_because(event.detail)}"
    name, _ = _class_of(Source.MPS.value, MpsFault.SERVER_DIED)
    return LogText(LogEventKind.MPS_EXITED, text, LogLevel.ERROR, event.gpu, name)


def _gpu_calibrated(event: GpuCalibrated, tenant: TenantIdentity) -> LogText:
    del tenant
    text = f"GPU {event.gpu} was measured: {event.calibration.describe()}"
    return LogText(LogEventKind.GPU_CALIBRATED, text, gpu=event.gpu)


def _mps_restarted(action: RestartMps, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(LogEventKind.MPS_RESTART, f"the MPS server of GPU {action.gpu} is restarted", gpu=action.gpu)


def _settings_changed(event: SettingsChanged, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(LogEventKind.SETTINGS, f"the settings changed: {event.detail}")


def _reported(event: NodeReported, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(event.what, event.text, event.level)


def _stopped(action: Stop, tenant: TenantIdentity) -> LogText:
    del tenant
    return LogText(LogEventKind.STOPPED, f"node stops: {action.reason}")


FORMATTERS: Final = dict(
    (
        handler(TenantRestarted, _restarted),
        handler(KillTenant, _killed),
        handler(SuspendTenant, _suspending),
        handler(TenantSuspended, _suspended),
        handler(RestoreTenant, _restoring),
        handler(TenantRestored, _restored),
        handler(MemoryRequested, _memory_requested),
        handler(MemoryBypassed, _memory_bypassed),
        handler(TenantFaulted, _faulted),
        handler(TenantHung, _hung),
        handler(GpusFound, _gpus_found),
        handler(ReportGpuHealth, _gpu_health),
        handler(GpuFaulted, _gpu_faulted),
        handler(GpuLost, _gpu_lost),
        handler(GpuRecovered, _gpu_recovered),
        handler(MpsStatusChanged, _mps_status),
        handler(GpuCalibrated, _gpu_calibrated),
        handler(RestartMps, _mps_restarted),
        handler(SettingsChanged, _settings_changed),
        handler(NodeReported, _reported),
        handler(Stop, _stopped),
    )
)
"""By type of event or action."""
