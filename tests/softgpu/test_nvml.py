"""NVIDIA's unmodified Python package for NVML on software GPUs: its results agree with the device's counters."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from cotenant.softgpu import manage
from tests.support.nvml_library import Worker, device_of, refusal, until_next_sample
from tests.support.software_gpus import run

pytestmark = pytest.mark.live

PERIOD_NS = 166_666_667
GIB = 1 << 30


@pytest.fixture
def device(softgpu: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The one V100 of the directory, through NVML."""
    with device_of(softgpu, monkeypatch) as handle:
        yield handle


@pytest.fixture(params=["t4", "v100-32", "a100", "h100"])
def part(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    directory = tmp_path / "gpu"
    manage.create(directory, request.param, 2)
    with device_of(directory, monkeypatch) as handle:
        yield request.param, handle
    manage.destroy(directory)


# -- identity ----------------------------------------


def test_device_is_found_by_index_uuid_bus_and_serial(part: tuple[str, Any]) -> None:
    _, handle = part
    assert nv.nvmlDeviceGetCount() == 2
    other = nv.nvmlDeviceGetHandleByIndex(1)
    uuids = [nv.nvmlDeviceGetUUID(gpu) for gpu in (handle, other)]
    assert uuids[0] != uuids[1]
    counters = manage.inspect(Path(os.environ["COTENANT_SOFTGPU"]), 1)
    assert uuids[1].removeprefix("GPU-").replace("-", "") == counters["uuid"]
    bus = nv.nvmlDeviceGetPciInfo(other)
    assert (bus.domain, bus.device, bus.busId) == (0, 0, f"00000000:{bus.bus:02X}:00.0")
    ext = nv.nvmlPciInfoExt_v1_t(version=nv.nvmlPciInfoExt_v1)
    nv.nvmlDeviceGetPciInfoExt(other, nv.byref(ext))
    assert (ext.bus, ext.pciDeviceId, ext.baseClass) == (bus.bus, bus.pciDeviceId, 3)
    for match in (
        nv.nvmlDeviceGetHandleByUUID(uuids[1]),
        nv.nvmlDeviceGetHandleByUUIDV(bytes.fromhex(counters["uuid"]), nv.NVML_UUID_TYPE_BINARY),
        nv.nvmlDeviceGetHandleByUUIDV(uuids[1].encode(), nv.NVML_UUID_TYPE_ASCII),
        nv.nvmlDeviceGetHandleByPciBusId(bus.busId),
        nv.nvmlDeviceGetHandleBySerial(nv.nvmlDeviceGetSerial(other)),
    ):
        assert nv.nvmlDeviceGetIndex(match) == 1
        assert nv.nvmlDeviceGetMinorNumber(match) == 1
    assert refusal(nv.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000") == nv.NVML_ERROR_NOT_FOUND
    assert refusal(nv.nvmlDeviceGetHandleByPciBusId, "0000:99:00.0") == nv.NVML_ERROR_NOT_FOUND
    assert refusal(nv.nvmlDeviceGetHandleByIndex, 2) == nv.NVML_ERROR_INVALID_ARGUMENT


def test_device_properties_match_the_data_sheet(part: tuple[str, Any]) -> None:
    key, handle = part
    name, capability, cores, bus_bits, limit_w, generation, brand, architecture = {
        "t4": ("Tesla T4", (7, 5), 2560, 256, 70, 3, nv.NVML_BRAND_NVIDIA, 6),
        "v100-32": ("Tesla V100-SXM2-32GB", (7, 0), 5120, 4096, 300, 3, nv.NVML_BRAND_TESLA, 5),
        "a100": ("NVIDIA A100-SXM4-40GB", (8, 0), 6912, 5120, 400, 4, nv.NVML_BRAND_NVIDIA, 7),
        "h100": (
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            16896,
            5120,
            700,
            5,
            nv.NVML_BRAND_NVIDIA,
            nv.NVML_DEVICE_ARCH_HOPPER,
        ),
    }[key]
    assert nv.nvmlDeviceGetName(handle) == name
    assert tuple(nv.nvmlDeviceGetCudaComputeCapability(handle)) == capability
    assert nv.nvmlDeviceGetNumGpuCores(handle) == cores
    assert nv.nvmlDeviceGetMemoryBusWidth(handle) == bus_bits
    assert nv.nvmlDeviceGetBrand(handle) == brand
    assert nv.nvmlDeviceGetArchitecture(handle) == architecture  # as NVML_DEVICE_ARCH_ numbers them
    limits = nv.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    assert limits[0] < limits[1] == nv.nvmlDeviceGetEnforcedPowerLimit(handle) == limit_w * 1000
    assert nv.nvmlDeviceGetPowerManagementLimit(handle) == nv.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    links = (nv.nvmlDeviceGetCurrPcieLinkGeneration(handle), nv.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    assert links == (generation, generation)
    assert nv.nvmlDeviceGetCurrPcieLinkWidth(handle) == nv.nvmlDeviceGetMaxPcieLinkWidth(handle) == 16


def test_features_of_newer_devices_are_refused_by_older_ones(part: tuple[str, Any]) -> None:
    key, handle = part
    unsupported = nv.NVML_ERROR_NOT_SUPPORTED
    if key in ("t4", "v100-32"):
        assert refusal(nv.nvmlDeviceGetMigMode, handle) == unsupported
        assert refusal(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) == unsupported
        assert refusal(nv.nvmlDeviceGetRemappedRows, handle) == unsupported
        assert refusal(nv.nvmlDeviceGetAttributes_v2, handle) == unsupported
        assert nv.nvmlDeviceGetRetiredPages(handle, 0) == []
        assert nv.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
    else:
        assert nv.nvmlDeviceGetMigMode(handle) == [0, 0]
        assert refusal(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) == nv.NVML_ERROR_NOT_FOUND
        assert list(nv.nvmlDeviceGetRemappedRows(handle)) == [0, 0, 0, 0]
        assert refusal(nv.nvmlDeviceGetRetiredPages, handle, 0) == unsupported
        assert nv.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount in (108, 132)
        assert nv.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    if key == "t4":
        assert refusal(nv.nvmlDeviceGetNvLinkState, handle, 0) == unsupported
    else:
        assert nv.nvmlDeviceGetNvLinkState(handle, 0) == nv.NVML_FEATURE_DISABLED
    assert bool(nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice) == (key == "h100")
    for question in (nv.nvmlDeviceGetFanSpeed, nv.nvmlDeviceGetGpuFabricInfo, nv.nvmlDeviceGetDriverModel):
        arguments = [handle] if question is not nv.nvmlDeviceGetGpuFabricInfo else [handle, None]
        assert refusal(question, *arguments) == unsupported


def test_idle_device_reports_its_settings(part: tuple[str, Any]) -> None:
    key, handle = part
    assert nv.nvmlDeviceGetPersistenceMode(handle) == nv.NVML_FEATURE_ENABLED
    assert nv.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert nv.nvmlDeviceGetTotalEccErrors(handle, 1, 0) == 0
    assert nv.nvmlDeviceGetAccountingMode(handle) == nv.NVML_FEATURE_DISABLED
    assert nv.nvmlDeviceGetVirtualizationMode(handle) == nv.NVML_GPU_VIRTUALIZATION_MODE_NONE
    assert nv.nvmlDeviceGetEncoderUtilization(handle)[0] == nv.nvmlDeviceGetDecoderUtilization(handle)[0] == 0
    assert nv.nvmlDeviceGetPerformanceState(handle) == (8 if key == "t4" else 0)
    assert nv.nvmlDeviceGetCurrentClocksEventReasons(handle) == nv.nvmlClocksEventReasonGpuIdle
    assert nv.nvmlDeviceGetSupportedPerformanceStates(handle) == ([0, 8] if key == "t4" else [0])
    memory_mhz = nv.nvmlDeviceGetSupportedMemoryClocks(handle)
    clocks = nv.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz[0])
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[0] == nv.nvmlDeviceGetMaxClockInfo(handle, nv.NVML_CLOCK_SM)
    assert nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) < clocks[0]
    degrees = [nv.nvmlDeviceGetTemperatureThreshold(handle, which) for which in (3, 1, 0)]
    assert nv.nvmlDeviceGetTemperature(handle, 0) == nv.nvmlDeviceGetTemperatureV(handle, 0)
    assert [nv.nvmlDeviceGetTemperature(handle, 0), *degrees] == sorted(
        [nv.nvmlDeviceGetTemperature(handle, 0), *degrees]
    )
    other = nv.nvmlDeviceGetHandleByIndex(1)
    assert nv.nvmlDeviceGetTopologyCommonAncestor(handle, other) == nv.NVML_TOPOLOGY_NODE
    assert [
        nv.nvmlDeviceGetIndex(gpu) for gpu in nv.nvmlDeviceGetTopologyNearestGpus(handle, nv.NVML_TOPOLOGY_NODE)
    ] == [1]
    assert nv.nvmlDeviceGetP2PStatus(handle, other, 1) == nv.NVML_P2P_STATUS_OK
    fields = nv.nvmlDeviceGetFieldValues(
        handle, [nv.NVML_FI_DEV_NVLINK_LINK_COUNT, nv.NVML_FI_DEV_POWER_MAX_LIMIT, 9999]
    )
    assert [field.nvmlReturn for field in fields] == [nv.NVML_SUCCESS, nv.NVML_SUCCESS, nv.NVML_ERROR_NOT_SUPPORTED]
    assert fields[1].value.uiVal == nv.nvmlDeviceGetEnforcedPowerLimit(handle)


# -- processes ----------------------------------------


def test_processes_are_listed_while_they_have_a_context(softgpu: Path, device: Any) -> None:
    assert nv.nvmlDeviceGetComputeRunningProcesses(device) == []
    worker = Worker(softgpu)
    worker.do("take", 3 * GIB)
    (process,) = nv.nvmlDeviceGetComputeRunningProcesses(device)
    assert (process.pid, process.usedGpuMemory) == (worker.pid, 3 * GIB)
    (detail,) = nv.nvmlDeviceGetRunningProcessDetailList(device, nv.nvmlProcessDetailList_v1, 0)
    assert (detail.pid, detail.usedGpuMemory) == (worker.pid, 3 * GIB)
    assert nv.nvmlDeviceGetGraphicsRunningProcesses(device) == nv.nvmlDeviceGetMPSComputeRunningProcesses(device) == []
    assert Path(nv.nvmlSystemGetProcessName(worker.pid)).name.startswith("python")
    memory, versioned = nv.nvmlDeviceGetMemoryInfo(device), nv.nvmlDeviceGetMemoryInfo(device, nv.nvmlMemory_v2)
    assert (memory.used, memory.used + memory.free) == (3 * GIB, memory.total)
    assert (versioned.used, versioned.free) == (memory.used, memory.free)
    assert nv.nvmlDeviceGetCurrentClocksEventReasons(device) == 0
    assert nv.nvmlDeviceGetClockInfo(device, nv.NVML_CLOCK_SM) == 1530
    worker.end()
    while nv.nvmlDeviceGetComputeRunningProcesses(device):
        time.sleep(0.01)
    assert nv.nvmlDeviceGetMemoryInfo(device).used == 0
    assert nv.nvmlDeviceGetClockInfo(device, nv.NVML_CLOCK_SM) == 135


def test_a_monitor_is_no_client_of_the_device(softgpu: Path, device: Any) -> None:
    nv.nvmlDeviceGetUtilizationRates(device)
    counters = manage.inspect(softgpu, 0)
    assert (counters["connected"], counters["clients"], counters["unsupported"]) == (0, [], {})


def test_nvml_ignores_visible_devices_and_agrees_on_bus_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "t4", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with device_of(directory, monkeypatch):
        assert nv.nvmlDeviceGetCount() == 2
        bus = nv.nvmlDeviceGetPciInfo(nv.nvmlDeviceGetHandleByIndex(1)).busId
    reported = run(directory, "bus.py").strip()
    manage.destroy(directory)
    assert bus == f"0000{reported}".upper()


# -- utilization ----------------------------------------


def test_utilization_samples_equal_the_counters(softgpu: Path, device: Any) -> None:
    worker = Worker(softgpu)
    for _ in range(20):
        worker.do("spin", 25_000_000, 40)  # 40 of 80 SMs
        time.sleep(0.025)
    counters = until_next_sample(softgpu)
    _, samples = nv.nvmlDeviceGetSamples(device, nv.NVML_GPU_UTILIZATION_SAMPLES, 0)
    stamps = [sample.timeStamp for sample in samples]
    assert stamps == sorted(set(stamps))
    reported_ns = sum(sample.sampleValue.uiVal * PERIOD_NS / 100 for sample in samples)
    # Each sample is a whole per cent: that is all that may be lost, half of one in each.
    assert abs(reported_ns - counters["counters"]["busy_ns"]) <= len(samples) * PERIOD_NS * 0.0051
    assert counters["counters"]["busy_ns"] == 20 * 25_000_000
    assert any(0 < sample.sampleValue.uiVal < 100 for sample in samples)
    # Samples that were already returned are not returned again.
    code, newer = nv.NVML_ERROR_NOT_FOUND, []
    try:
        newer = nv.nvmlDeviceGetSamples(device, nv.NVML_GPU_UTILIZATION_SAMPLES, stamps[-1])[1]
    except nv.NVMLError as error:
        code = error.value
    assert code == nv.NVML_ERROR_NOT_FOUND
    assert all(sample.timeStamp > stamps[-1] for sample in newer)
    # By process, over everything that is remembered: the same time, and all of it this worker's.
    (utilization,) = nv.nvmlDeviceGetProcessUtilization(device, 0)
    (info,) = nv.nvmlDeviceGetProcessesUtilizationInfo(device, 0)
    assert utilization.pid == info.pid == worker.pid
    client = manage.inspect(softgpu, 0)["clients"][0]["counters"]
    assert client["sm_ns"] == 40 * client["busy_ns"]
    worker.end()


def test_latest_utilization_equals_the_counters(softgpu: Path, device: Any) -> None:
    worker = Worker(softgpu)
    queries = agreed = 0
    while queries < 6 or not agreed:  # a late query finds the device idle
        worker.do("spin", (40_000_000, 90_000_000, 130_000_000)[queries % 3], 80)
        queries += 1
        while True:  # the same period on both sides of the question
            before = manage.inspect(softgpu, 0)["utilization"]
            rates, power_mw = nv.nvmlDeviceGetUtilizationRates(device), nv.nvmlDeviceGetPowerUsage(device)
            if manage.inspect(softgpu, 0)["utilization"] == before:
                break
        assert rates.gpu == round(100 * before["busy_ns"] / before["period_ns"])
        # 40 W idle, 260 W more at full use, of which seven tenths follow the SMs.
        assert abs(power_mw - (40_000 + 260_000 * 0.7 * before["sm_activity"])) <= 1
        agreed += before["busy_ns"] > 0
    worker.end()


def test_energy_and_temperature_follow_the_work(softgpu: Path, device: Any) -> None:
    before = manage.inspect(softgpu, 0)
    idle_c = nv.nvmlDeviceGetTemperature(device, 0)
    worker = Worker(softgpu)
    worker.do("spin", 1_000_000_000, 80)
    after = until_next_sample(softgpu)
    passed_s = (after["utilization"]["at_ns"] - before["utilization"]["at_ns"]) / 1e9
    spent_j = (after["utilization"]["energy_uj"] - before["utilization"]["energy_uj"]) / 1e6
    assert spent_j == pytest.approx(40 * passed_s + 260 * 0.7 * 1.0, rel=1e-4)
    assert nv.nvmlDeviceGetTotalEnergyConsumption(device) >= after["utilization"]["energy_uj"] // 1000
    assert nv.nvmlDeviceGetTemperature(device, 0) > idle_c
    worker.end()


def test_traffic_to_the_host_is_reported_by_direction(softgpu: Path, device: Any) -> None:
    worker = Worker(softgpu)
    reported = 0
    for _ in range(50):
        worker.do("copy", 1 << 20)  # little enough to be written on the host, too, before the period is over
        until_next_sample(softgpu)
        received = nv.nvmlDeviceGetPcieThroughput(device, nv.NVML_PCIE_UTIL_RX_BYTES)
        assert nv.nvmlDeviceGetPcieThroughput(device, nv.NVML_PCIE_UTIL_TX_BYTES) == 0
        reported += received > 0
        if reported:
            break
    assert reported
    worker.end()


def test_gpm_of_a_hopper_distinguishes_sm_and_time_utilization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "h100", 1)
    with device_of(directory, monkeypatch) as device:
        worker = Worker(directory)
        first, second = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
        nv.nvmlGpmSampleGet(device, first)
        worker.do("spin", 50_000_000, 33)  # a quarter of 132 SMs
        nv.nvmlGpmSampleGet(device, second)
        query = nv.c_nvmlGpmMetricsGet_t(version=nv.NVML_GPM_METRICS_GET_VERSION, numMetrics=3)
        query.sample1, query.sample2 = first, second
        metrics = (nv.NVML_GPM_METRIC_GRAPHICS_UTIL, nv.NVML_GPM_METRIC_SM_UTIL, nv.NVML_GPM_METRIC_SM_OCCUPANCY)
        for index, metric in enumerate(metrics):
            query.metrics[index].metricId = metric
        nv.nvmlGpmMetricsGet(query)
        busy, sms, occupancy = (query.metrics[index].value for index in range(3))
        assert busy > 0
        assert sms == pytest.approx(busy / 4, rel=1e-9)
        assert occupancy == pytest.approx(sms * 256 / 2048, rel=1e-9)  # one block of 256 threads on each of them
        nv.nvmlGpmSampleFree(first)
        nv.nvmlGpmSampleFree(second)
        worker.end()
    manage.destroy(directory)


# -- failures ----------------------------------------


def test_destroyed_server_is_reported_as_a_lost_gpu(softgpu: Path, device: Any) -> None:
    manage.destroy(softgpu)
    assert refusal(nv.nvmlDeviceGetUtilizationRates, device) == nv.NVML_ERROR_GPU_IS_LOST
    assert refusal(nv.nvmlDeviceGetName, device) == nv.NVML_ERROR_GPU_IS_LOST


def test_compute_mode_is_set_on_the_device(softgpu: Path, device: Any) -> None:
    nv.nvmlDeviceSetComputeMode(device, nv.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert nv.nvmlDeviceGetComputeMode(device) == nv.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert manage.inspect(softgpu, 0)["compute_mode"] == nv.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert refusal(nv.nvmlDeviceSetComputeMode, device, 1) == nv.NVML_ERROR_NOT_SUPPORTED
    nv.nvmlDeviceSetComputeMode(device, nv.NVML_COMPUTEMODE_DEFAULT)


def test_unmodified_exporter_reports_to_prometheus(softgpu: Path) -> None:
    pytest.importorskip("nvitop_exporter", reason="nvitop-exporter is not installed (extra dev)")
    worker = Worker(softgpu)
    worker.do("take", GIB)
    text = run(softgpu, "exporter.py")
    worker.end()
    counters = manage.inspect(softgpu, 0)
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    by_name = {name.partition("{")[0]: value for name, value in series.items()}
    assert float(by_name["gpu_memory_total_MiB"]) == counters["memory_bytes"] / (1 << 20)
    assert float(by_name["gpu_memory_used_MiB"]) == GIB / (1 << 20)
    assert float(by_name["gpu_power_limit_W"]) == 300
    assert any(name.startswith("process_gpu_memory_MiB") and f'pid="{worker.pid}"' in name for name in series)
