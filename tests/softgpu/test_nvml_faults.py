"""Faults and MPS clients of a software GPU as monitors see them through NVIDIA's own package."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from cotenant.softgpu import manage
from cotenant.softgpu.fault import KINDS, inject, reset, set_clock
from tests.support.mps_daemons import READY, MpsHarness
from tests.support.nvml_library import Worker, device_of, refusal

pytestmark = pytest.mark.live

WAIT_MS = 60_000


@pytest.fixture
def a100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Any]]:
    directory = tmp_path / "gpu"
    manage.create(directory, "a100", 2)
    with device_of(directory, monkeypatch) as handle:
        yield directory, handle
    manage.destroy(directory)


def register_events(*devices: Any) -> Any:
    events = nv.nvmlEventSetCreate()
    for device in devices:
        assert nv.nvmlDeviceGetSupportedEventTypes(device) == nv.nvmlEventTypeXidCriticalError
        nv.nvmlDeviceRegisterEvents(device, nv.nvmlEventTypeXidCriticalError, events)
    return events


def test_xids_are_reported_once_in_order_to_each_waiter(a100: tuple[Path, Any]) -> None:
    directory, device = a100
    inject(directory, 0, KINDS["ecc"])  # before any registration, so not reported
    events, others = register_events(device), register_events(device)
    assert refusal(nv.nvmlEventSetWait_v2, events, 0) == nv.NVML_ERROR_TIMEOUT
    reported: list[int] = []

    def wait() -> None:
        reported.extend(nv.nvmlEventSetWait_v2(events, WAIT_MS).eventData for _ in range(3))

    waiting = threading.Thread(target=wait)
    waiting.start()
    inject(directory, 0, KINDS["ecc"])
    waiting.join()
    assert reported == list(KINDS["ecc"].xids)
    assert refusal(nv.nvmlEventSetWait_v2, events, 0) == nv.NVML_ERROR_TIMEOUT
    first = nv.nvmlEventSetWait_v2(others, 0)
    assert (first.eventType, first.eventData) == (nv.nvmlEventTypeXidCriticalError, KINDS["ecc"].xids[0])
    for events_set in (events, others):
        nv.nvmlEventSetFree(events_set)


def test_event_set_of_two_devices_names_the_device_of_an_xid(a100: tuple[Path, Any]) -> None:
    directory, device = a100
    other = nv.nvmlDeviceGetHandleByIndex(1)
    events = register_events(device, other)
    inject(directory, 1, KINDS["device-lost"])
    event = nv.nvmlEventSetWait_v2(events, WAIT_MS)
    assert (nv.nvmlDeviceGetIndex(event.device), event.eventData) == (1, 79)
    assert refusal(nv.nvmlDeviceGetUtilizationRates, other) == nv.NVML_ERROR_GPU_IS_LOST
    assert nv.nvmlDeviceGetUtilizationRates(device).gpu == 0
    reset(directory, 1)
    assert nv.nvmlDeviceGetUtilizationRates(other).gpu == 0
    nv.nvmlEventSetFree(events)


def test_memory_errors_are_counted_and_row_remapping_is_pending_until_reset(a100: tuple[Path, Any]) -> None:
    directory, device = a100
    inject(directory, 0, KINDS["ecc"])
    counts = [nv.nvmlDeviceGetTotalEccErrors(device, kind, since) for kind in (0, 1) for since in (0, 1)]
    assert counts == [0, 0, 1, 1]  # none corrected; one uncorrected since the reset, and ever
    assert nv.nvmlDeviceGetMemoryErrorCounter(device, 1, 0, nv.NVML_MEMORY_LOCATION_DEVICE_MEMORY) == 1
    assert list(nv.nvmlDeviceGetRemappedRows(device)) == [0, 1, 1, 0]
    field = nv.nvmlDeviceGetFieldValues(device, [nv.NVML_FI_DEV_ECC_DBE_VOL_TOTAL])[0]
    assert field.value.ullVal == 1
    reset(directory, 0)
    counts = [nv.nvmlDeviceGetTotalEccErrors(device, 1, since) for since in (0, 1)]
    assert counts == [0, 1]
    assert list(nv.nvmlDeviceGetRemappedRows(device)) == [0, 1, 0, 0]


def test_slow_clock_is_reported_with_its_reason(a100: tuple[Path, Any]) -> None:
    directory, device = a100
    worker = Worker(directory)
    set_clock(directory, 0, 0.5)
    assert nv.nvmlDeviceGetClockInfo(device, nv.NVML_CLOCK_SM) == 1410 // 2
    assert nv.nvmlDeviceGetCurrentClocksEventReasons(device) == nv.nvmlClocksEventReasonHwSlowdown
    set_clock(directory, 0, 1)
    assert nv.nvmlDeviceGetClockInfo(device, nv.NVML_CLOCK_SM) == 1410
    assert nv.nvmlDeviceGetCurrentClocksEventReasons(device) == 0
    worker.end()


def test_mps_clients_are_listed_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = MpsHarness(tmp_path)
    try:
        assert harness.control("-d").returncode == 0
        client, stranger = harness.client("init"), harness.stranger("init", "context", "alloc 2097152")
        with device_of(harness.directory, monkeypatch) as device:
            assert [process.pid for process in nv.nvmlDeviceGetComputeRunningProcesses(device)] == [stranger.pid]
            assert client.ask("context", "alloc 4194304") == READY
            processes = {process.pid: process for process in nv.nvmlDeviceGetComputeRunningProcesses(device)}
            assert set(processes) == {
                client.pid,
                stranger.pid,
                harness.server(),
            }  # the MPS server represents its clients
            used = nv.nvmlDeviceGetMemoryInfo(device).used
            assert sum(process.usedGpuMemory for process in processes.values()) == used == 6 << 20
            assert [process.pid for process in nv.nvmlDeviceGetMPSComputeRunningProcesses(device)] == [client.pid]
    finally:
        harness.close()
