"""Wires `cotenant advise`: watch a program's GPU work, change nothing, and say what could be shared."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.apps.hook import hook_into, profiles_of
from cotenant.apps.profile import fills, fills_json
from cotenant.domain.profile import Profile
from cotenant.errors import ConfigError, WorldError
from cotenant.format.config import RunConfig
from cotenant.live.client import tenants_of
from cotenant.live.directory import Places
from cotenant.live.gpu import GpuReading, nvml, read_gpus
from cotenant.live.guard import Child
from cotenant.live.hook.trace import family, read_records
from cotenant.live.process import Signals, exec_failure_code
from cotenant.policy.predict.fill import Fill

_LOOK_MS: Final = 200


class MemoryUse(msgspec.Struct, frozen=True):
    """What a program took of one GPU's memory at most, and what there is."""

    gpu: int
    name: str
    peak_bytes: int
    others_bytes: int
    """The least that was taken by anybody else, while it ran."""
    memory_bytes: int

    @property
    def headroom_bytes(self) -> int:
        """What a neighbour could have had."""
        return max(self.memory_bytes - self.peak_bytes - self.others_bytes, 0)


class Advice(msgspec.Struct, frozen=True):
    """What was seen of one program on one kind of device."""

    profile: Profile
    observed_ns: int
    busy_ns: int
    measured: bool
    """Whether every kernel was timed; else the times are of samples, and the span is the host's."""
    fills: list[Fill]

    @property
    def idle_ns(self) -> int:
        """Device time that a neighbour could have had."""
        return max(self.observed_ns - self.busy_ns, 0)


def advice_of(profile: Profile) -> Advice:
    """What a profile says about sharing; of a sampled one the host's launches tell how long it lasted."""
    if profile.span_ns:
        return Advice(profile, profile.span_ns, profile.busy_ns, measured=True, fills=fills(profile))
    host_ns = sum(interval.host.total for interval in profile.intervals)
    busy_ns = min(round(profile.device_ns), host_ns)
    return Advice(profile, host_ns, busy_ns, measured=False, fills=[])


class MemoryWatch:
    """The most that a family of processes took of each GPU."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[int, MemoryUse] = {}

    def look(self, readings: Sequence[GpuReading], pids: Sequence[int]) -> None:
        """Take note of one moment."""
        ours = dict.fromkeys(pids)
        for gpu in readings:
            taken = sum(one.memory_bytes or 0 for one in gpu.processes if one.pid in ours)
            if not taken:
                continue
            before = self._seen.get(gpu.index)
            others = max(gpu.memory_used_bytes - taken, 0)
            self._seen[gpu.index] = MemoryUse(
                gpu.index,
                gpu.name,
                max(taken, before.peak_bytes if before else 0),
                min(others, before.others_bytes if before else others),
                gpu.memory_bytes,
            )

    def uses(self) -> list[MemoryUse]:
        """By GPU."""
        return [use for _, use in sorted(self._seen.items())]


def observe(
    config: RunConfig,
    command: Sequence[str],
    environ: Mapping[str, str],
    places: Places,
    soft: Path | None,
    say: Callable[[str], None],
) -> tuple[int, list[Profile], list[MemoryUse]]:
    """Run a program with every kernel timed, as nobody's tenant: its exit code, recordings and use of memory."""
    watch = MemoryWatch()
    with hook_into(config, places.runtime / "hook", environ, config.task, None, say) as hooked:
        if hooked is None:
            raise WorldError("there is no CUDA driver to look at; `cotenant doctor` says what to do")
        signals = Signals()
        try:
            child = Child(command, {**environ, **hooked.variables(environ, None)}, [], signals.before)
        except OSError as error:
            signals.close()
            say(f"cannot run {command[0]!r}: {error.strerror}")
            return exec_failure_code(error), [], []
        with contextlib.ExitStack() as stack:
            stack.callback(signals.close)
            try:
                stack.enter_context(nvml(soft))
                has_nvml = True
            except WorldError as error:
                say(f"{error}; memory is not told")
                has_nvml = False
            poller = select.poll()
            poller.register(child.fileno(), select.POLLIN)
            poller.register(signals.fileno(), select.POLLIN)
            while child.code is None:
                ready = [descriptor for descriptor, _ in poller.poll(_LOOK_MS)]
                if child.fileno() in ready:
                    child.hear()
                for number, has_it in signals.read():
                    if not has_it:
                        child.send_signal(number)
                hooked.look(child.guard)
                if has_nvml:
                    watch.look(read_gpus(soft), family(child.guard))
        code = child.code
        child.release(let_go=True)
        return code, profiles_of(hooked.collect(config.task), config.task), watch.uses()


def observe_tenant(
    places: Places, hooks: Path, name: str, soft: Path | None, say: Callable[[str], None]
) -> tuple[list[Profile], list[MemoryUse]]:
    """A tenant that runs now: what its processes have recorded so far, and the memory they hold."""
    found = [view.tenant for view in tenants_of(places.socket).tenants if view.tenant.name == name]
    if not found:
        raise ConfigError("--tenant", name, "no such tenant is here; see `cotenant ps`")
    pid = found[0].pid
    directories = sorted(hooks.glob(f"run-{pid}-*"))
    if not directories:
        raise WorldError(f"{name} runs without the hook, or as somebody else's: nothing is known of its GPU work")
    task = found[0].spec.task
    records = [record for one in directories for record in read_records(one / "records", task)]
    watch = MemoryWatch()
    try:
        with nvml(soft):
            watch.look(read_gpus(soft), family(pid))
    except WorldError as error:
        say(f"{error}; memory is not told")
    return profiles_of(records, task), watch.uses()


def advice_json(advices: Sequence[Advice], memory: Sequence[MemoryUse]) -> dict[str, object]:
    """`cotenant advise --json`."""
    return {
        "devices": [
            {
                "task": one.profile.task,
                "device": one.profile.device,
                "measured": one.measured,
                "observed_ns": one.observed_ns,
                "busy_ns": one.busy_ns,
                "idle_ns": one.idle_ns,
                "launches": sum(timing.launches for timing in one.profile.timings),
                "fill": fills_json(one.fills),
            }
            for one in advices
        ],
        "memory": [
            {
                "gpu": use.gpu,
                "name": use.name,
                "peak_bytes": use.peak_bytes,
                "headroom_bytes": use.headroom_bytes,
                "memory_bytes": use.memory_bytes,
            }
            for use in memory
        ],
    }
