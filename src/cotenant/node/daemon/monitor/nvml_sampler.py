"""Queries NVML about the node's devices on a separate thread: a driver may take long, or never answer."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml

from cotenant.errors import PeerError, WorldError
from cotenant.node.model.gpu import SOFT_PREFIX, UUID_PREFIX, Gpu
from cotenant.node.model.protection import GpuSample
from cotenant.node.nvml import nvml, process_memory, process_use, query, sm_activity, text_of
from cotenant.runner.clock import monotonic_ns
from cotenant.softgpu import manage
from cotenant.units.share import WHOLE_PPM

_RETRY_NS: Final = 1_000_000_000  # the interval of searches for a device that NVML does not know
_XIDS_LIMIT: Final = 64
_PERCENT_PPM: Final = WHOLE_PPM // 100
_RECENT_US: Final = 200_000  # of a process's use: a sample period of a device that keeps six samples per second


class DeviceQuery(msgspec.Struct, frozen=True):
    """A device to query, and the values to query besides its Xids."""

    gpu: int
    device: Gpu
    sample: bool = False
    held: bool = True
    uses: bool = False


class DeviceReading(msgspec.Struct, frozen=True):
    """One reading of one device."""

    gpu: int
    is_there: bool = False
    """Whether NVML knows the device."""
    lost: str = ""
    """Why the device counts as lost; empty: it does not."""
    sample: GpuSample | None = None
    held_bytes: Mapping[int, int | None] | None = None
    """By process, None if the driver does not report the amount; None for all: not queried."""
    uses_pct: Mapping[int, int] | None = None
    """By recently active process; None: not queried or not reported."""
    bus_id: str = ""
    """The PCI address; empty: not reported."""
    xids: Sequence[tuple[int, int]] = ()
    """New Xids since the last reading, each with its process; 0: unknown."""


class NvmlSampler:
    """NVML, initialised at the first query and again when a device is missing. Use from one thread only."""

    def __init__(self, homes: Sequence[Path]) -> None:
        """Software GPUs in the first of these directories precede the machine's own."""
        self._homes = homes
        self._session: _Session | None = None
        self._last_try_ns: int | None = None
        self.pending_gpu = -1
        """The device whose answer is pending; the loop reads it when an answer takes too long."""

    def read(self, queries: Sequence[DeviceQuery]) -> list[DeviceReading]:
        """Return a reading of every given device."""
        readings = []
        for place, device_query in enumerate(queries):
            self.pending_gpu = device_query.gpu
            if place == 0 and self._session is not None:
                self._session.receive_xids()  # of all devices
            readings.append(self._read(device_query))
        self.pending_gpu = -1
        return readings

    def close(self) -> None:
        """Shut NVML down."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _read(self, device_query: DeviceQuery) -> DeviceReading:
        reading = self._try_read(device_query)
        if (reading.is_there and not reading.lost) or not self._may_retry():
            return reading
        # Software GPUs come and go, and NVML knows only those that were there when it was initialised.
        self.close()
        with contextlib.suppress(WorldError):
            self._session = _Session(self._homes)
        return self._try_read(device_query)

    def _try_read(self, device_query: DeviceQuery) -> DeviceReading:
        if self._session is None:
            return DeviceReading(device_query.gpu)
        try:
            return self._session.read(device_query)
        except pynvml.NVMLError as error:
            return DeviceReading(device_query.gpu, is_there=True, lost=str(error))

    def _may_retry(self) -> bool:
        now = monotonic_ns()
        if self._last_try_ns is not None and now - self._last_try_ns < _RETRY_NS:
            return False
        self._last_try_ns = now
        return True


class _Session:
    """One session of NVML, from initialisation to shutdown."""

    def __init__(self, homes: Sequence[Path]) -> None:
        self._soft = next((home for home in homes if any(gpu.alive for gpu in manage.gpus(home))), None)
        self._exit_stack = contextlib.ExitStack()
        self._exit_stack.enter_context(nvml(self._soft))
        self._devices: dict[str, _Device] = {}
        self._event_set: Any = None
        self._is_event_set_lost = False

    def close(self) -> None:
        for device in self._devices.values():
            device.close()
        with contextlib.suppress(pynvml.NVMLError):
            if self._event_set is not None:
                pynvml.nvmlEventSetFree(self._event_set)
        self._exit_stack.close()

    def read(self, device_query: DeviceQuery) -> DeviceReading:
        names = device_query.device.names(device_query.gpu)
        device = self._devices.get(names[0])
        if device is None:
            handle = self._find(names)
            if handle is None:
                return DeviceReading(device_query.gpu)
            self._register_events(handle)
            device = self._devices[names[0]] = _Device(handle, self._soft)
        xids = tuple(device.take_xids())
        try:
            if (
                self._is_event_set_lost
            ):  # one of its devices does not answer: this one, if it does not answer now either
                pynvml.nvmlDeviceGetMemoryInfo(device.handle)
            return DeviceReading(
                device_query.gpu,
                is_there=True,
                sample=device.sample() if device_query.sample else None,
                held_bytes=device.held() if device_query.held else None,
                uses_pct=device.uses() if device_query.uses else None,
                bus_id=device.bus_id,
                xids=xids,
            )
        except pynvml.NVMLError as error:  # the Xids before the loss are still useful
            return DeviceReading(device_query.gpu, is_there=True, lost=str(error), xids=xids)

    def _find(self, names: Sequence[str]) -> Any:
        """Return the handle of the device with one of these names, the most specific name first."""
        for name in names:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with contextlib.suppress(pynvml.NVMLError):  # another lost device must not hide this one
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    if self._has_name(handle, index, name):
                        return handle
        return None

    def _has_name(self, handle: Any, index: int, name: str) -> bool:
        if name.startswith(UUID_PREFIX):
            return text_of(pynvml.nvmlDeviceGetUUID(handle)) == name
        if name.startswith(SOFT_PREFIX):
            return self._soft is not None and name == f"{SOFT_PREFIX}{pynvml.nvmlDeviceGetMinorNumber(handle)}"
        return self._soft is None and name == str(index)

    def _register_events(self, handle: Any) -> None:
        """Register for this device's Xids, if it reports them."""
        if self._event_set is None:
            self._event_set = query(pynvml.nvmlEventSetCreate)
        if self._event_set is not None:
            query(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._event_set)

    def receive_xids(self) -> None:
        """Read the reported Xids without waiting; a caller that polls every few milliseconds needs no thread."""
        self._is_event_set_lost = False
        for _ in range(_XIDS_LIMIT if self._event_set is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._event_set, 0)
            except pynvml.NVMLError as error:
                self._is_event_set_lost = error.value != pynvml.NVML_ERROR_TIMEOUT
                return
            for device in self._devices.values():
                if device.address == _address(event.device):
                    device.reported.append(int(event.eventData))


class _Device:
    """One device of a session."""

    def __init__(self, handle: Any, soft: Path | None) -> None:
        self.handle = handle
        self._soft = soft
        self._number = pynvml.nvmlDeviceGetMinorNumber(handle) if soft is not None else -1
        self._top_mhz = query(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
        self._gpm = _gpm_of(handle)
        self._last_xid = max((entry["sequence"] for entry in self._recorded_xids()), default=0)
        self.address = _address(handle)
        pci = query(pynvml.nvmlDeviceGetPciInfo, handle)
        self.bus_id = "" if pci is None else text_of(pci.busId)
        self.reported: list[int] = []

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()

    def held(self) -> dict[int, int | None]:
        """Return memory by process; None: not reported."""
        return process_memory(self.handle)

    def uses(self) -> dict[int, int] | None:
        """Return the recent activity by process in per cent of the time; None: not reported.

        Activity of an MPS server is that of its clients, which cannot be separated.
        """
        uses: dict[int, int] | None = query(process_use, self.handle, _RECENT_US)
        return None if uses is None or any(_is_mps_server(pid) for pid in uses) else uses

    def sample(self) -> GpuSample:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self.handle)
        use = query(pynvml.nvmlDeviceGetUtilizationRates, self.handle)
        active_pct = self._activity_pct()
        return GpuSample(
            utilization_ppm=-1 if use is None else use.gpu * _PERCENT_PPM,
            sm_activity_ppm=-1 if active_pct is None else round(active_pct * _PERCENT_PPM),
            clock_ppm=self._clock_ppm(),
            memory_used_bytes=memory.used,
            memory_bytes=memory.total,
        )

    def _clock_ppm(self) -> int:
        """Return the SM clock as a fraction of the highest; -1: not reported, or the device is idle.

        An idle device lowers its clock to save power, which says nothing about how fast kernels run. Utilization does
        not tell whether it is idle: it is an average, and remains high for a while after the last kernel.
        """
        clock_mhz = query(pynvml.nvmlDeviceGetClockInfo, self.handle, pynvml.NVML_CLOCK_SM)
        reasons = query(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self.handle)
        if reasons is None:  # drivers before 535 know the earlier name only
            reasons = query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self.handle)
        is_idle = reasons is not None and bool(reasons & pynvml.nvmlClocksThrottleReasonGpuIdle)
        return -1 if clock_mhz is None or not self._top_mhz or is_idle else clock_mhz * WHOLE_PPM // self._top_mhz

    def _activity_pct(self) -> float | None:
        if self._gpm is not None:
            return self._gpm.activity_pct()
        return None if self._soft is None else sm_activity(self._soft, self._number)

    def take_xids(self) -> Iterator[tuple[int, int]]:
        """Return the Xids since the last call. NVML does not name the process; the counters of a software GPU do."""
        records = self._recorded_xids() if self.reported else ()
        for xid in self.reported:
            entry = next(
                (record for record in records if record["sequence"] > self._last_xid and record["xid"] == xid), None
            )
            if entry is not None:
                self._last_xid = entry["sequence"]
            yield xid, 0 if entry is None else max(0, entry["pid"])
        self.reported.clear()

    def _recorded_xids(self) -> Sequence[Mapping[str, int]]:
        if self._soft is None:
            return ()
        try:
            xids: list[Mapping[str, int]] = manage.inspect(self._soft, self._number)["xids"]
        except (WorldError, PeerError):
            return ()
        return xids


class _Gpm:
    """SM activity between two readings, on devices whose driver measures it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._latest = pynvml.nvmlGpmSampleAlloc()
        self._before = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, self._latest)

    def activity_pct(self) -> float | None:
        """Return the fraction of SMs with work since the last call."""
        self._before, self._latest = self._latest, self._before
        pynvml.nvmlGpmSampleGet(self._handle, self._latest)
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = self._before, self._latest
        request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        try:
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return None  # for example if no time has passed between the two
        return None if request.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS else float(request.metrics[0].value)

    def close(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlGpmSampleFree(self._latest)
            pynvml.nvmlGpmSampleFree(self._before)


def _gpm_of(handle: Any) -> _Gpm | None:
    support = query(pynvml.nvmlGpmQueryDeviceSupport, handle)
    return _Gpm(handle) if support is not None and support.isSupportedDevice else None


def _is_mps_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").startswith("nvidia-cuda-mps")
    except OSError:
        return False


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
