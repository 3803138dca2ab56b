"""`cotenant advise`: observe a program's GPU work without changing it, and report what could be shared."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError, SetupError, WorldError
from cotenant.hook.records import process_tree, read_records
from cotenant.node.client.connection import list_tenants
from cotenant.node.client.guard import Child
from cotenant.node.client.hook_setup import NO_DRIVER, hooked_program, profiles_of
from cotenant.node.config.file import RunConfig
from cotenant.node.directories import Directories
from cotenant.node.nvml import GpuReading, nvml, read_gpus
from cotenant.predict.gap_fill import Fill
from cotenant.profile.commands import fills, fills_json
from cotenant.profile.profile import Profile
from cotenant.runner.process import Signals, exec_failure_code

_POLL_MS: Final = 200


class MemoryUse(msgspec.Struct, frozen=True):
    """The peak memory use of a program on one GPU, and the GPU's memory."""

    gpu: int
    name: str
    peak_bytes: int
    others_bytes: int
    """The smallest memory use of other processes while the program ran."""
    memory_bytes: int

    @property
    def headroom_bytes(self) -> int:
        """Return the memory that a neighbour could have used."""
        return max(self.memory_bytes - self.peak_bytes - self.others_bytes, 0)


class Advice(msgspec.Struct, frozen=True):
    """The observations of one program on one kind of device."""

    profile: Profile
    observed_ns: int
    busy_ns: int
    measured: bool
    """Whether every kernel was timed; otherwise the times are of samples, and the span is the host's."""
    fills: list[Fill]

    @property
    def idle_ns(self) -> int:
        """Return the device time that a neighbour could have used."""
        return max(self.observed_ns - self.busy_ns, 0)


def advice_of(profile: Profile) -> Advice:
    """Return the advice from a profile; the duration of a sampled profile comes from the host's launches."""
    if profile.span_ns:
        return Advice(profile, profile.span_ns, profile.busy_ns, measured=True, fills=fills(profile))
    host_ns = sum(interval.host.total for interval in profile.intervals)
    busy_ns = min(round(profile.device_ns), host_ns)
    return Advice(profile, host_ns, busy_ns, measured=False, fills=[])


class MemoryWatch:
    """The peak memory use of a process tree on each GPU."""

    def __init__(self) -> None:
        """Start without observations."""
        self._by_gpu: dict[int, MemoryUse] = {}

    def check(self, readings: Sequence[GpuReading], pids: Sequence[int]) -> None:
        """Record the memory use at this instant."""
        own_pids = dict.fromkeys(pids)
        for gpu in readings:
            used_bytes = sum(process.memory_bytes or 0 for process in gpu.processes if process.pid in own_pids)
            if not used_bytes:
                continue
            earlier = self._by_gpu.get(gpu.index)
            others = max(gpu.memory_used_bytes - used_bytes, 0)
            self._by_gpu[gpu.index] = MemoryUse(
                gpu.index,
                gpu.name,
                max(used_bytes, earlier.peak_bytes if earlier else 0),
                min(others, earlier.others_bytes if earlier else others),
                gpu.memory_bytes,
            )

    def uses(self) -> list[MemoryUse]:
        """Return the use by GPU."""
        return [use for _, use in sorted(self._by_gpu.items())]


def observe(
    config: RunConfig,
    command: Sequence[str],
    environ: Mapping[str, str],
    directories: Directories,
    soft: Path | None,
    report: Callable[[str], None],
) -> tuple[int, list[Profile], list[MemoryUse]]:
    """Run a program with every kernel timed, outside the node; return exit code, recordings and memory use."""
    watch = MemoryWatch()
    with hooked_program(config, directories.runtime / "hook", environ, config.task, None, report) as hooked:
        if hooked is None:
            raise SetupError(f"{NO_DRIVER}, then cotenant advise --gpu soft:0 -- COMMAND")
        signals = Signals()
        try:
            child = Child(command, {**environ, **hooked.variables(environ, is_tenant=False)}, signals.before)
        except OSError as error:
            signals.close()
            report(f"cannot run {command[0]!r}: {error.strerror}")
            return exec_failure_code(error), [], []
        with contextlib.ExitStack() as stack:
            stack.callback(signals.close)
            try:
                stack.enter_context(nvml(soft))
                has_nvml = True
            except WorldError as error:
                report(f"{error}; memory use is not reported")
                has_nvml = False
            poller = select.poll()
            poller.register(child.fileno(), select.POLLIN)
            poller.register(signals.fileno(), select.POLLIN)
            poller.register(hooked.fileno(), select.POLLIN)
            while child.code is None:
                ready = [descriptor for descriptor, _ in poller.poll(_POLL_MS)]
                if child.fileno() in ready:
                    child.receive()
                for number, has_it in signals.read():
                    if not has_it:
                        child.send_signal(number)
                hooked.check(child.guard)
                if has_nvml:
                    watch.check(read_gpus(soft), process_tree(child.guard))
        code = child.code
        child.release(keep_running=True)
        return code, profiles_of(hooked.collect(config.task), config.task), watch.uses()


def observe_tenant(
    directories: Directories, hooks: Path, name: str, soft: Path | None, report: Callable[[str], None]
) -> tuple[list[Profile], list[MemoryUse]]:
    """Return the recordings of a running tenant's processes so far, and the memory that they hold."""
    tenants = [view.tenant for view in list_tenants(directories).tenants if view.tenant.name == name]
    if not tenants:
        raise ConfigError("--tenant", name, "the node has no tenant of this name; see `cotenant ps`")
    pid = tenants[0].pid
    runs = sorted(hooks.glob(f"run-{pid}-*"))
    if not runs:
        raise SetupError(f"{name} runs without the hook, or as another user: its GPU work is not recorded")
    task = tenants[0].spec.task
    records = [record for run in runs for record in read_records(run / "records", task)]
    watch = MemoryWatch()
    try:
        with nvml(soft):
            watch.check(read_gpus(soft), process_tree(pid))
    except WorldError as error:
        report(f"{error}; memory use is not reported")
    return profiles_of(records, task), watch.uses()


def advice_json(advices: Sequence[Advice], memory: Sequence[MemoryUse]) -> dict[str, object]:
    """Return the output of `cotenant advise --json`."""
    return {
        "devices": [
            {
                "task": advice.profile.task,
                "device": advice.profile.device,
                "measured": advice.measured,
                "observed_ns": advice.observed_ns,
                "busy_ns": advice.busy_ns,
                "idle_ns": advice.idle_ns,
                "launches": sum(timing.launches for timing in advice.profile.timings),
                "fill": fills_json(advice.fills),
            }
            for advice in advices
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
