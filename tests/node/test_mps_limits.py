"""The driver's own limits of MPS clients follow the grants."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.daemon.mps_limits import (
    DeviceMemoryController,
    client_limits,
    memory_text,
    normal_bus_id,
)
from cotenant.node.model.gpu import Gpu
from cotenant.softgpu.mps.limits import parse_memory_list

UUID = "GPU-4f1a2b3c-0000-1111-2222-333344445555"
SOFT, REAL = Gpu("soft:0", 16 << 30, ("soft:0",)), Gpu("A100", 80 << 30, (UUID, "0"))
ONLINE = Grant(0, 1, Kind.ONLINE, 2, 0, 0, 0, 0)
OFFLINE = Grant(1, 1, Kind.OFFLINE, 7, 0, 3 << 30, 0, 0)


def rules(*entries: GateEntry) -> GateRules:
    return GateRules(delay_ppm=250_000, entries=entries)


def test_quota_becomes_the_limit_of_pinned_memory() -> None:
    limits = client_limits(OFFLINE, [(None, SOFT)], None)
    assert limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
    assert parse_memory_list("0=3072M", field="") == {"0": 3 << 30}
    assert client_limits(OFFLINE, [(None, REAL)], None)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{UUID}=3072M"
    assert client_limits(ONLINE, [(None, SOFT)], None) == {}
    assert memory_text((1 << 20) + 1) == "2M"


def test_offline_clients_have_the_lower_priority_and_the_sms_that_online_tenants_leave() -> None:
    online, offline = GateEntry(0, 1, 2, online=True), GateEntry(1, 1, 7, online=False)
    limits = client_limits(OFFLINE, [(rules(online, offline), SOFT)], 50_000)
    assert limits["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "15"  # online 80 %, headroom 5 %
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client_limits(OFFLINE, [(rules(offline), SOFT)], 50_000)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client_limits(OFFLINE, [(rules(online, offline), SOFT)], None)


def test_static_limit_becomes_a_percentage() -> None:
    entry = GateEntry(1, 1, 7, online=False, limit_ppm=301_000, static=True)
    assert client_limits(OFFLINE, [(rules(entry), SOFT)], None)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "31"
    earlier = GateEntry(1, 9, 7, online=False, limit_ppm=301_000, static=True)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client_limits(OFFLINE, [(rules(earlier), SOFT)], None)


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "dmem.capacity").write_text("drm/0000:01:00.0/vram0 8000\nnvidia/0000:3b:00.0/vidmem 85899345920\n")
    (tmp_path / "box").mkdir()
    return tmp_path


def test_memory_controller_limits_a_cgroup_where_the_kernel_has_it(cgroups: Path) -> None:
    controller = DeviceMemoryController(cgroups)
    region = controller.region_of("00000000:3B:00.0")
    assert region == "nvidia/0000:3b:00.0/vidmem"
    assert controller.limit("/box", region, 1 << 30)
    written = cgroups / "box" / "dmem.max"
    assert written.read_text() == "nvidia/0000:3b:00.0/vidmem 1073741824\n"
    written.unlink()
    assert controller.limit("/box", region, 1 << 30)
    assert not written.exists(), "unchanged"
    controller.forget([])
    assert controller.limit("/box", region, 1 << 30)
    assert written.exists()
    assert not controller.limit("/no-such-cgroup", region, 1 << 30)


def test_without_the_controller_no_region_is_found(tmp_path: Path, cgroups: Path) -> None:
    assert DeviceMemoryController(tmp_path / "missing").region_of("00000000:3B:00.0") is None
    assert DeviceMemoryController(cgroups).region_of("00000000:5E:00.0") is None
    assert DeviceMemoryController(cgroups).region_of("") is None
    assert normal_bus_id("0000:3b:00.0") == "0000:3b:00.0"
