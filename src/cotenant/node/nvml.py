"""Readings of this machine's GPUs through NVML (NVIDIA's nvidia-ml-py), of real or software GPUs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pynvml

from cotenant.errors import PeerError, SetupError, WorldError
from cotenant.softgpu import manage

_COMPUTE_MODES: Final = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_REMEDY: Final = "install NVIDIA's driver, or make a software GPU with: cotenant softgpu create"
_NOT_AVAILABLE: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
_COMPUTE_LISTS: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)
PROCESS_LISTS: Final = (*_COMPUTE_LISTS, pynvml.nvmlDeviceGetGraphicsRunningProcesses)
_RECENT_US: Final = 1_000_000  # the utilization of a process is measured over the last second


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a GPU."""

    pid: int
    command: str
    memory_bytes: int | None
    utilization_pct: int | None
    is_mps: bool


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one instant; None stands for a value that this GPU does not report."""

    index: int
    name: str
    uuid: str
    is_soft: bool
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None
    sm_activity_pct: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    temperature_c: int | None = None
    compute_mode: str | None = None
    processes: tuple[GpuProcess, ...] = ()
    is_lost: bool = False


def softgpu_directory(environ: Mapping[str, str], configured: Path) -> Path | None:
    """Return the directory of the software GPUs in use: the one that the environment names, or the configured one."""
    directory = environ.get("COTENANT_SOFTGPU")
    if directory:
        return Path(directory)
    return configured if any(gpu.alive for gpu in manage.gpus(configured)) else None


@contextmanager
def nvml(soft: Path | None) -> Iterator[None]:
    """Initialise NVML: that of the software GPUs in `soft`, or the machine's if `soft` is None."""
    if soft is not None:
        library = soft.absolute() / "lib" / manage.NVML
        os.environ["COTENANT_SOFTGPU"] = str(soft.absolute())  # the library reads it when it is initialised
        try:
            ctypes.CDLL(str(library))  # NVIDIA's package then finds this library under its name
        except OSError as error:
            raise SetupError(f"the NVML of the software GPUs cannot be loaded: {error}; {_REMEDY}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_installed = error.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND  # then the driver may be about to be loaded
        raise (WorldError if is_installed else SetupError)(f"NVML is not available ({error}); {_REMEDY}") from error
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def read_gpus(soft: Path | None) -> list[GpuReading]:
    """Return a reading of every GPU; NVML must be initialised."""
    try:
        return [_reading_or_lost(index, soft) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise WorldError(f"NVML does not answer: {error}") from error


def query(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the answer of an NVML function; None for a function that this GPU does not support."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value not in _NOT_AVAILABLE:
            raise
        return None


def _reading_or_lost(index: int, soft: Path | None) -> GpuReading:
    """Return the reading of one GPU; a GPU that is lost must not hide the others."""
    try:
        return _reading(index, pynvml.nvmlDeviceGetHandleByIndex(index), soft)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return GpuReading(index, name="", uuid="", is_soft=soft is not None, is_lost=True)


def _reading(index: int, handle: Any, soft: Path | None) -> GpuReading:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    use = query(pynvml.nvmlDeviceGetUtilizationRates, handle)
    mode = query(pynvml.nvmlDeviceGetComputeMode, handle)
    return GpuReading(
        index=index,
        name=text_of(pynvml.nvmlDeviceGetName(handle)),
        uuid=text_of(pynvml.nvmlDeviceGetUUID(handle)),
        is_soft=soft is not None,
        memory_bytes=memory.total,
        memory_used_bytes=memory.used,
        utilization_pct=None if use is None else use.gpu,
        memory_utilization_pct=None if use is None else use.memory,
        sm_activity_pct=None if soft is None else sm_activity(soft, pynvml.nvmlDeviceGetMinorNumber(handle)),
        sm_clock_mhz=query(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=query(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        power_mw=query(pynvml.nvmlDeviceGetPowerUsage, handle),
        power_limit_mw=query(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        temperature_c=query(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        compute_mode=None if mode is None else _COMPUTE_MODES.get(mode, str(mode)),
        processes=_processes(handle),
    )


def sm_activity(soft: Path, ordinal: int) -> float | None:
    """Return the SMs in use, in percent, from the state of a software GPU: NVML does not report it."""
    try:
        return 100 * float(manage.inspect(soft, ordinal)["utilization"]["sm_activity"])
    except (WorldError, PeerError):
        return None


def _processes(handle: Any) -> tuple[GpuProcess, ...]:
    """Return the processes with compute contexts; a process with several kinds of context appears once."""
    mps = {process.pid for process in query(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle) or ()}
    computing = process_memory(handle, _COMPUTE_LISTS)
    uses = (query(process_use, handle) if computing else None) or {}
    return tuple(
        GpuProcess(pid, _command(pid), used_bytes, uses.get(pid), pid in mps)
        for pid, used_bytes in sorted(computing.items())
    )


def process_memory(handle: Any, lists: Sequence[Callable[[Any], Any]] = PROCESS_LISTS) -> dict[int, int | None]:
    """Return memory by process; None: not reported.

    A list may name a process more than once, as with several GPU instances: its entries are added up. A process in
    several lists has several kinds of context, and each list states its memory: the largest amount counts.
    """
    used: dict[int, int | None] = {}
    for list_processes in lists:
        listed: dict[int, int | None] = {}
        for process in query(list_processes, handle) or ():
            amounts = (listed.get(process.pid), process.usedGpuMemory)
            listed[process.pid] = None if amounts == (None, None) else sum(amount or 0 for amount in amounts)
        for pid, amount in listed.items():
            used[pid] = amount if used.get(pid) is None else max(used[pid] or 0, amount or 0)
    return used


def process_use(handle: Any, recent_us: int = _RECENT_US) -> dict[int, int]:
    """Return utilization by process over `recent_us`; NVML omits processes that were idle."""
    samples = query(pynvml.nvmlDeviceGetSamples, handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    stamps = [sample.timeStamp for sample in samples[1]] if samples else []
    since = max(stamps) - recent_us if stamps else 0
    try:
        return {use.pid: use.smUtil for use in pynvml.nvmlDeviceGetProcessUtilization(handle, since)}
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return {}
        raise


def _command(pid: int) -> str:
    name = query(pynvml.nvmlSystemGetProcessName, pid)
    return "" if name is None else text_of(name)


def text_of(value: str | bytes) -> str:
    """Return text: older versions of NVIDIA's package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
