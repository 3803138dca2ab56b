"""Measures what sharing each device costs, while nobody uses it; keeps the results by device and driver."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
import pynvml

from cotenant.errors import WorldError
from cotenant.node.daemon.monitor.calibration_program import MPS_WORD
from cotenant.node.daemon.monitor.context_size import program_environment, soft_home_of
from cotenant.node.model.calibration import Calibration, Measured, Part
from cotenant.node.model.event import Event, GpuCalibrated, NodeSettings
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantView
from cotenant.node.nvml import PROCESS_LISTS, nvml, process_memory, text_of
from cotenant.runner.atomic_file import write_atomically
from cotenant.runner.background import BackgroundTasks, TaskResult
from cotenant.units.instant import SECOND_NS, Instant

IDLE_NS: Final = 3 * SECOND_NS
"""A device is measured after no tenant has used it for this long."""
RETRY_NS: Final = 60 * SECOND_NS
"""After a measurement that failed or found the device in use."""
PERIOD_NS: Final = SECOND_NS // 2
TRIES: Final = 5
DEADLINE_S: Final = 20.0
_PROGRAM: Final = "cotenant.node.daemon.monitor.calibration_program"
_LIMIT: Final = 64


class _Measurements(msgspec.Struct, frozen=True):
    """The output of the measuring program."""

    switch_ns: Measured
    slice_ns: Measured
    launch_ns: Measured
    event_record_ns: Measured
    event_query_ns: Measured
    event_resolution_ns: Measured
    priority_effect_ppm: Part | None = None


class CalibrationFile:
    """Earlier results, in one file; a file that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        """Keep the path."""
        self._path = path

    def read(self) -> list[Calibration]:
        """Return all results."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Calibration])
        except (OSError, msgspec.MsgspecError, ValueError):
            return []

    def find(self, uuid: str, driver: str, *, is_mps: bool) -> Calibration | None:
        """Return the result for a device with a driver."""
        wanted = (uuid, driver, is_mps)
        return next((each for each in self.read() if (each.uuid, each.driver, each.is_mps) == wanted), None)

    def add(self, calibration: Calibration) -> None:
        """Add a result, or replace that of the same device; the oldest results are dropped."""
        key = (calibration.uuid, calibration.is_mps)
        others = [each for each in self.read() if (each.uuid, each.is_mps) != key]
        with contextlib.suppress(OSError):  # it will be measured again after the next start
            write_atomically(self._path, msgspec.json.encode([*others, calibration][-_LIMIT:]))


class CalibratedNode(Protocol):
    """The node's state as the calibrator reads it."""

    @property
    def settings(self) -> NodeSettings:
        """The settings in force, with the devices."""
        ...

    def tenants(self) -> list[TenantView]:
        """Return all tenants."""
        ...


class _Busy(Exception):  # noqa: N818  no error: the device is measured later
    """Other programs use the device."""


class Calibrator:
    """A timer of the loop that measures devices which no tenant uses, one after the other."""

    def __init__(
        self,
        node: CalibratedNode,
        tasks: BackgroundTasks,
        homes: Sequence[Path],
        environment: Callable[[], Mapping[str, str]],
        file: CalibrationFile,
        post: Callable[[Event], None],
    ) -> None:
        """Find software GPUs in these directories; `environment` is added to that of the measuring program."""
        self._node = node
        self._tasks = tasks
        self._homes = homes
        self._environment = environment
        self._file = file
        self._post = post
        self._due: Instant = 0
        self._idle_since: dict[int, Instant] = {}
        self._measured: dict[int, Gpu] = {}
        self._failures: dict[Gpu, int] = {}
        self._retry: dict[int, Instant] = {}
        self._measuring: int | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._is_cancelled = False

    def next_wakeup(self) -> Instant | None:
        """Return when to look again; None while every device is measured."""
        return self._due if self._measuring is not None or self._wanted() else None

    def wake(self, now: Instant) -> None:
        """End a measurement on a device that has a tenant now, or begin the next one."""
        self._due = now + PERIOD_NS
        used = {view.tenant.grant.gpu for view in self._node.tenants()}
        if self._measuring is not None:
            if self._measuring in used:
                self._cancel()
            return
        for gpu in self._wanted():
            if gpu in used:
                self._idle_since.pop(gpu, None)
            elif now - self._idle_since.setdefault(gpu, now) >= IDLE_NS and now >= self._retry.get(gpu, now):
                self._begin(gpu, now)
                return

    def close(self) -> None:
        """End the measurement in progress."""
        self._cancel()
        self._tasks.close()

    def _wanted(self) -> list[int]:
        settings = self._node.settings
        if not settings.uses_calibration:
            return []
        return [
            gpu
            for gpu, device in enumerate(settings.gpus)
            if device.called and self._measured.get(gpu) != device and self._failures.get(device, 0) < TRIES
        ]

    def _begin(self, gpu: int, now: Instant) -> None:
        device, is_mps = self._node.settings.gpus[gpu], self._node.settings.is_mps
        self._measuring, self._is_cancelled = gpu, False
        self._tasks.submit(
            lambda: self._measure(gpu, device, is_mps=is_mps),
            lambda result: self._on_result(gpu, device, result, now),
        )

    def _on_result(self, gpu: int, device: Gpu, result: TaskResult[Calibration], began: Instant) -> None:
        self._measuring = None
        self._idle_since.pop(gpu, None)
        if result.error is not None:
            is_busy = self._is_cancelled or isinstance(result.error, _Busy)
            self._failures[device] = self._failures.get(device, 0) + (not is_busy)
            self._retry[gpu] = began + (IDLE_NS if self._is_cancelled else RETRY_NS)
            return
        self._measured[gpu] = device
        if gpu < len(self._node.settings.gpus) and self._node.settings.gpus[gpu] == device:
            self._post(GpuCalibrated(gpu, result.result()))

    def _cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._process is not None:
                self._process.kill()

    # ---- on the background thread ------------------------------------------------------------------------------------

    def _measure(self, gpu: int, device: Gpu, *, is_mps: bool) -> Calibration:
        uuid, driver = self._identify(gpu, device)
        known = self._file.find(uuid, driver, is_mps=is_mps)
        if known is not None:
            return known
        measured = msgspec.json.decode(self._run(gpu, device, is_mps=is_mps), type=_Measurements)
        self._identify(gpu, device)  # a program that came meanwhile may have disturbed it
        calibration = Calibration(driver=driver, uuid=uuid, is_mps=is_mps, **msgspec.structs.asdict(measured))
        self._file.add(calibration)
        return calibration

    def _identify(self, gpu: int, device: Gpu) -> tuple[str, str]:
        """Return the UUID of an unused device and the version of its driver."""
        with nvml(soft_home_of(self._homes)):
            handle = _handle(gpu, device)
            if process_memory(handle, PROCESS_LISTS):
                raise _Busy
            driver = text_of(pynvml.nvmlSystemGetDriverVersion())
            return text_of(pynvml.nvmlDeviceGetUUID(handle)), driver

    def _run(self, gpu: int, device: Gpu, *, is_mps: bool) -> str:
        environ = program_environment(self._homes, {**self._environment(), "CUDA_VISIBLE_DEVICES": device.visible(gpu)})
        with self._lock:
            if self._is_cancelled:
                raise _Busy
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, *([MPS_WORD] if is_mps else [])],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        finally:
            with self._lock:
                self._process = None
        if process.returncode:
            raise WorldError(f"the measurement of GPU {gpu} ended with {process.returncode}")
        return output


def _handle(gpu: int, device: Gpu) -> object:
    """Return NVML's handle of a device, by its UUID where it is known."""
    uuid = next((name for name in device.called if name.startswith("GPU-")), "")
    if uuid:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    return pynvml.nvmlDeviceGetHandleByIndex(gpu)
