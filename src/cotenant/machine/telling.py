"""How is a fact about a tenant or a device told in one sentence? What protection hears and does, fact by fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cotenant.domain.action import Kill, MpsRestart, Restore, Stop, Suspend, Watch
from cotenant.domain.event import (
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpusFound,
    MemoryWanted,
    MpsSeen,
    TenantFaulted,
    TenantHangs,
    TenantRestarted,
    TenantRestored,
    TenantSuspended,
)
from cotenant.domain.fault import MpsTrouble, Source, called
from cotenant.domain.happening import NO_GPU, Level, What
from cotenant.domain.protect import Health
from cotenant.domain.tenant import Kind, Terms
from cotenant.format.log import cause_of
from cotenant.format.quantity import round_duration, round_size
from cotenant.policy.protect.errors import classify

OTHER_FAULT: Final = "unknown"
_HEALTH_LEVELS: Final = {
    Health.UNHEALTHY: Level.WARNING,
    Health.OVERLIMIT: Level.WARNING,
    Health.DISABLED: Level.ERROR,
}


class Resident(NamedTuple):
    """Who holds a slot."""

    name: str
    terms: Terms


class Telling(NamedTuple):
    """What to say of it; no GPU of its own: that of whoever it is about."""

    what: What
    text: str
    level: Level = Level.INFO
    gpu: int | None = None
    why: str = ""


NOBODY: Final = Resident("", Terms(-1, 0, Kind.OFFLINE, 0, 0, 0, 0, NO_GPU))


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _class_of(source: str, code: int) -> tuple[str, str]:
    """The name and the words of an error's class; a source that nobody knows is its own."""
    try:
        found = classify(Source(source), code)
    except ValueError:
        return OTHER_FAULT, "of a kind that this version does not know"
    return found.name, found.words


def _restarted(event: TenantRestarted, who: Resident) -> Telling:
    times = "once" if event.restarts == 1 else f"{event.restarts} times"
    text = f"{who.name} was started again ({times} by now) after: {event.ending}"
    return Telling(What.RESTARTED, text, Level.WARNING)


def _killed(action: Kill, who: Resident) -> Telling:
    return Telling(What.KILLED, f"{who.name} is killed by the node itself: {cause_of(action.why)}", Level.WARNING)


def _suspending(action: Suspend, who: Resident) -> Telling:
    return Telling(What.SUSPENDING, f"{who.name} is to move its device memory to the host: {cause_of(action.why)}")


def _suspended(event: TenantSuspended, who: Resident) -> Telling:
    if event.ok:
        return Telling(What.SUSPENDED, f"{who.name} is suspended: its device memory is on the host")
    text = f"{who.name} could not be suspended{_because(event.detail)}"
    return Telling(What.SUSPEND_FAILED, text, Level.WARNING)


def _restoring(action: Restore, who: Resident) -> Telling:
    del action
    return Telling(What.RESTORING, f"{who.name} is to move its memory back to the device")


def _restored(event: TenantRestored, who: Resident) -> Telling:
    if event.ok:
        return Telling(What.RESTORED, f"{who.name} runs again: its memory is back on the device")
    text = f"{who.name} could not be brought back to the device{_because(event.detail)}"
    return Telling(What.RESTORE_FAILED, text, Level.WARNING)


def _wanted(event: MemoryWanted, who: Resident) -> Telling:
    text = f"{who.name} waits for {round_size(event.bytes)} of device memory: its quota allows it, but others hold it"
    return Telling(What.MEMORY_WANTED, text, Level.WARNING)


def _faulted(event: TenantFaulted, who: Resident) -> Telling:
    name, words = _class_of(event.source, event.code)
    text = f"{who.name} met {called(event.source)} {event.code}: {words}"
    return Telling(What.FAULTED, text, Level.WARNING, why=name)


def _hangs(event: TenantHangs, who: Resident) -> Telling:
    known = f", expected {round_duration(event.expected_ns)}" if event.expected_ns else ""
    kernel = f"kernel {event.kernel}" if event.kernel else "a kernel"
    text = f"{who.name} hangs: {kernel} has run for {round_duration(event.waited_ns)}{known}"
    return Telling(What.HANGS, text, Level.WARNING, why=_class_of(Source.HANG.value, 0)[0])


def _found(event: GpusFound, who: Resident) -> Telling:
    del who
    return Telling(What.GPU_FOUND, f"found {', '.join(gpu.name for gpu in event.gpus)}")


def _watched(action: Watch, who: Resident) -> Telling:
    del who
    watch = action.watch
    text = f"GPU {action.gpu} is {watch.health.value}{_because(watch.why)}"
    level = _HEALTH_LEVELS.get(watch.health, Level.INFO)
    return Telling(What.GPU_STATE, text, level, action.gpu, watch.health.value)


def _gpu_faulted(event: GpuFaulted, who: Resident) -> Telling:
    name, words = _class_of(Source.XID.value, event.xid)
    whose = f" of {who.name}" if who.name else ""
    text = f"GPU {event.gpu} reported Xid {event.xid}{whose}: {words}"
    return Telling(What.GPU_FAULTED, text, Level.WARNING, event.gpu, name)


def _gpu_lost(event: GpuLost, who: Resident) -> Telling:
    del who
    return Telling(What.GPU_LOST, f"GPU {event.gpu} does not answer{_because(event.detail)}", Level.ERROR, event.gpu)


def _gpu_back(event: GpuBack, who: Resident) -> Telling:
    del who
    return Telling(What.GPU_BACK, f"GPU {event.gpu} answers again", gpu=event.gpu)


def _mps_seen(event: MpsSeen, who: Resident) -> Telling:
    del who
    if event.is_ready:
        return Telling(What.MPS_READY, f"MPS serves GPU {event.gpu}", gpu=event.gpu)
    text = f"the MPS server of GPU {event.gpu} is gone{_because(event.detail)}"
    name, _ = _class_of(Source.MPS.value, MpsTrouble.SERVER_DIED)
    return Telling(What.MPS_GONE, text, Level.ERROR, event.gpu, name)


def _mps_restarted(action: MpsRestart, who: Resident) -> Telling:
    del who
    return Telling(What.MPS_RESTART, f"the MPS server of GPU {action.gpu} is started again", gpu=action.gpu)


def _stopped(action: Stop, who: Resident) -> Telling:
    del who
    return Telling(What.STOPPED, f"node stops: {action.reason}")


TELLINGS: Final[dict[type, Callable[[Any, Resident], Telling]]] = {
    TenantRestarted: _restarted,
    Kill: _killed,
    Suspend: _suspending,
    TenantSuspended: _suspended,
    Restore: _restoring,
    TenantRestored: _restored,
    MemoryWanted: _wanted,
    TenantFaulted: _faulted,
    TenantHangs: _hangs,
    GpusFound: _found,
    Watch: _watched,
    GpuFaulted: _gpu_faulted,
    GpuLost: _gpu_lost,
    GpuBack: _gpu_back,
    MpsSeen: _mps_seen,
    MpsRestart: _mps_restarted,
    Stop: _stopped,
}
"""By the kind of event or action."""
