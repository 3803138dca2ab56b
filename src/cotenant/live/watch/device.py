"""What does NVML say of the node's devices? Asked on a thread of its own: a driver may take long, or never answer."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml

from cotenant.domain.gpu import SOFT_PREFIX, UUID_PREFIX, WHOLE_PPM, Gpu
from cotenant.domain.protect import GpuSample
from cotenant.errors import PeerError, WorldError
from cotenant.live.clock import monotonic_ns
from cotenant.live.gpu import nvml, process_use, sm_activity, text_of, told
from cotenant.live.softgpu import manage

_AGAIN_NS: Final = 1_000_000_000  # a device that NVML does not know is looked for this often, and no more
_XIDS_AT_ONCE: Final = 64
_PERCENT_PPM: Final = WHOLE_PPM // 100
_RECENT_US: Final = 200_000  # of a process's use: a whole sample period of a device that keeps six per second


class Question(msgspec.Struct, frozen=True):
    """Which device to look at, and what to ask besides its Xids."""

    gpu: int
    device: Gpu
    sample: bool = False
    held: bool = True
    uses: bool = False


class Seen(msgspec.Struct, frozen=True):
    """One look at one device."""

    gpu: int
    is_there: bool = False
    """Whether NVML knows such a device at all."""
    lost: str = ""
    """Why it is as good as gone; empty: it is not."""
    sample: GpuSample | None = None
    held_bytes: Mapping[int, int | None] | None = None
    """By process, None of one of which the driver does not tell how much; None instead of all: not asked."""
    uses_pct: Mapping[int, int] | None = None
    """By process, of those that did anything lately; None: not asked, or not told."""
    xids: Sequence[tuple[int, int]] = ()
    """New ones since the last look, each with the process it is about; 0: nobody knows."""


class Devices:
    """NVML, initialised when it is first asked and anew when a device is missing. Not to be used by two threads."""

    def __init__(self, homes: Sequence[Path]) -> None:
        """Soft GPUs that live in the first of these directories come before the machine's own."""
        self._homes = homes
        self._session: _Session | None = None
        self._tried_ns: int | None = None
        self.asking = -1
        """The device that an answer is awaited of; read by the loop when one stays away for too long."""

    def look(self, questions: Sequence[Question]) -> list[Seen]:
        """Every device asked for as it is now."""
        seen = []
        for question in questions:
            self.asking = question.gpu
            seen.append(self._look(question))
        self.asking = -1
        return seen

    def close(self) -> None:
        """Let go of NVML."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _look(self, question: Question) -> Seen:
        found = self._ask(question)
        if (found.is_there and not found.lost) or not self._may_open_again():
            return found
        # Software GPUs come and go, and NVML knows only those that were there when it was initialised.
        self.close()
        with contextlib.suppress(WorldError):
            self._session = _Session(self._homes)
        return self._ask(question)

    def _ask(self, question: Question) -> Seen:
        if self._session is None:
            return Seen(question.gpu)
        try:
            return self._session.look(question)
        except pynvml.NVMLError as error:
            return Seen(question.gpu, is_there=True, lost=str(error))

    def _may_open_again(self) -> bool:
        now = monotonic_ns()
        if self._tried_ns is not None and now - self._tried_ns < _AGAIN_NS:
            return False
        self._tried_ns = now
        return True


class _Session:
    """From one initialisation of NVML to its end."""

    def __init__(self, homes: Sequence[Path]) -> None:
        self._soft = next((home for home in homes if any(gpu.alive for gpu in manage.gpus(home))), None)
        self._open = contextlib.ExitStack()
        self._open.enter_context(nvml(self._soft))
        self._known: dict[str, _Device] = {}
        self._set: Any = None

    def close(self) -> None:
        for device in self._known.values():
            device.close()
        with contextlib.suppress(pynvml.NVMLError):
            if self._set is not None:
                pynvml.nvmlEventSetFree(self._set)
        self._open.close()

    def look(self, question: Question) -> Seen:
        names = question.device.names(question.gpu)
        device = self._known.get(names[0])
        if device is None:
            handle = self._find(names)
            if handle is None:
                return Seen(question.gpu)
            self._listen(handle)
            device = self._known[names[0]] = _Device(handle, self._soft)
        self._hear()
        xids = tuple(device.take_xids())
        try:
            return Seen(
                question.gpu,
                is_there=True,
                sample=device.sample() if question.sample else None,
                held_bytes=device.held() if question.held else None,
                uses_pct=device.uses() if question.uses else None,
                xids=xids,
            )
        except pynvml.NVMLError as error:  # what it reported before it went is worth knowing all the same
            return Seen(question.gpu, is_there=True, lost=str(error), xids=xids)

    def _find(self, names: Sequence[str]) -> Any:
        """The device of one of these names, the surest first."""
        for name in names:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with contextlib.suppress(pynvml.NVMLError):  # another one that is lost must not hide this one
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    if self._is_called(handle, index, name):
                        return handle
        return None

    def _is_called(self, handle: Any, index: int, name: str) -> bool:
        if name.startswith(UUID_PREFIX):
            return text_of(pynvml.nvmlDeviceGetUUID(handle)) == name
        if name.startswith(SOFT_PREFIX):
            return self._soft is not None and name == f"{SOFT_PREFIX}{pynvml.nvmlDeviceGetMinorNumber(handle)}"
        return self._soft is None and name == str(index)

    def _listen(self, handle: Any) -> None:
        """Have this device's Xids kept for us; one that reports none is watched without."""
        if self._set is None:
            self._set = told(pynvml.nvmlEventSetCreate)
        if self._set is not None:
            told(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._set)

    def _hear(self) -> None:
        """Take over what is reported, without waiting: whoever looks every few milliseconds needs no thread for it."""
        for _ in range(_XIDS_AT_ONCE if self._set is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    raise
                return
            for device in self._known.values():
                if device.address == _address(event.device):
                    device.reported.append(int(event.eventData))


class _Device:
    """One device of a session."""

    def __init__(self, handle: Any, soft: Path | None) -> None:
        self._handle = handle
        self._soft = soft
        self._number = pynvml.nvmlDeviceGetMinorNumber(handle) if soft is not None else -1
        self._top_mhz = told(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
        self._gpm = _gpm_of(handle)
        self._known_xids = max((entry["sequence"] for entry in self._books_xids()), default=0)
        self.address = _address(handle)
        self.reported: list[int] = []

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()

    def held(self) -> dict[int, int | None]:
        """Memory by process; one with several kinds of context is told once."""
        found: dict[int, int | None] = {}
        for list_them in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            for process in told(list_them, self._handle) or ():
                found[process.pid] = process.usedGpuMemory
        return found

    def uses(self) -> dict[int, int] | None:
        """Which processes ran something lately, in per cent of the time; None: this device does not tell.

        What an MPS server is said to have run, its clients did, and nobody knows which of them.
        """
        uses: dict[int, int] | None = told(process_use, self._handle, _RECENT_US)
        return None if uses is None or any(_is_mps_server(pid) for pid in uses) else uses

    def sample(self) -> GpuSample:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        use = told(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        clock_mhz = told(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM)
        active_pct = self._activity_pct()
        return GpuSample(
            utilization_ppm=-1 if use is None else use.gpu * _PERCENT_PPM,
            sm_activity_ppm=-1 if active_pct is None else round(active_pct * _PERCENT_PPM),
            clock_ppm=-1 if clock_mhz is None or not self._top_mhz else clock_mhz * WHOLE_PPM // self._top_mhz,
            memory_used_bytes=memory.used,
            memory_bytes=memory.total,
        )

    def _activity_pct(self) -> float | None:
        if self._gpm is not None:
            return self._gpm.activity_pct()
        return None if self._soft is None else sm_activity(self._soft, self._number)

    def take_xids(self) -> Iterator[tuple[int, int]]:
        """What was reported since the last time. NVML does not say whose it is; a soft GPU's books do."""
        books = self._books_xids() if self.reported else ()
        for xid in self.reported:
            entry = next((one for one in books if one["sequence"] > self._known_xids and one["xid"] == xid), None)
            if entry is not None:
                self._known_xids = entry["sequence"]
            yield xid, 0 if entry is None else max(0, entry["pid"])
        self.reported.clear()

    def _books_xids(self) -> Sequence[Mapping[str, int]]:
        if self._soft is None:
            return ()
        try:
            books: list[Mapping[str, int]] = manage.inspect(self._soft, self._number)["xids"]
        except (WorldError, PeerError):
            return ()
        return books


class _Gpm:
    """SM activity between two looks, on devices whose driver measures it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._latest = pynvml.nvmlGpmSampleAlloc()
        self._before = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, self._latest)

    def activity_pct(self) -> float | None:
        """SMs that had work, of all of them and of the time since the last call."""
        self._before, self._latest = self._latest, self._before
        pynvml.nvmlGpmSampleGet(self._handle, self._latest)
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = 1
        asked.sample1, asked.sample2 = self._before, self._latest
        asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        try:
            pynvml.nvmlGpmMetricsGet(asked)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return None  # as when no time has passed between the two
        return None if asked.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS else float(asked.metrics[0].value)

    def close(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlGpmSampleFree(self._latest)
            pynvml.nvmlGpmSampleFree(self._before)


def _gpm_of(handle: Any) -> _Gpm | None:
    support = told(pynvml.nvmlGpmQueryDeviceSupport, handle)
    return _Gpm(handle) if support is not None and support.isSupportedDevice else None


def _is_mps_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").startswith("nvidia-cuda-mps")
    except OSError:
        return False


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
