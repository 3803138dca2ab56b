"""GPUs in MIG mode are used through their parts, named by UUID. NVML is imitated: no hardware was tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from cotenant.node import nvml
from cotenant.node.daemon import discovery
from cotenant.node.directories import Directories
from cotenant.node.model.gpu import Gpu
from cotenant.softgpu.selection import environment_of, selected_gpu
from tests.support.protection_setup import JOB, ProtectedNode

GIB = 1 << 30
PARTS = ["MIG-11111111-aaaa", "MIG-22222222-bbbb"]


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imitate a machine with an ordinary GPU and one in MIG mode with two of at most seven parts."""
    uuids = {"whole": "GPU-0000", "parent": "GPU-9999", "part0": PARTS[0], "part1": PARTS[1]}

    def part(handle: str, number: int) -> str:
        assert handle == "parent"
        if number > 1:
            raise pynvml.NVMLError_NotFound(pynvml.NVML_ERROR_NOT_FOUND)
        return f"part{number}"

    fakes: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: ("whole", "parent")[index],
        "nvmlDeviceGetMigMode": lambda handle: (int(handle == "parent"), 0),
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": part,
        "nvmlDeviceGetUUID": lambda handle: uuids[handle],
        "nvmlDeviceGetName": lambda handle: f"A100 {handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=10 * GIB, used=0),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(pynvml, name, fake)
    readings = [
        SimpleNamespace(index=index, name="A100", memory_bytes=80 * GIB, uuid=uuid, is_lost=False)
        for index, uuid in enumerate(("GPU-0000", "GPU-9999"))
    ]
    monkeypatch.setattr(discovery, "read_gpus", lambda soft: readings)


@pytest.mark.usefixtures("divided")
def test_parts_take_the_place_of_their_gpu(tmp_path: Path) -> None:
    found = discovery.GpuDiscovery(tmp_path, {}).update(())
    assert [gpu.called for gpu in found] == [("GPU-0000", "0"), (PARTS[0],), (PARTS[1],)]
    assert [gpu.memory_bytes // GIB for gpu in found] == [80, 10, 10]
    assert list(nvml.mig_devices()) == [(1, "part0"), (1, "part1")]


def test_tenant_requests_parts_by_uuid_or_its_beginning() -> None:
    node = ProtectedNode(tuple(Gpu(name, 100, (name,)) for name in PARTS))
    node.join(1, JOB, gpu=f"{PARTS[1]},MIG-1111")
    assert node.machine.registry.holders[0].grant.gpus == (1, 0)


def test_program_gets_the_uuids(tmp_path: Path) -> None:
    directories = Directories(tmp_path, tmp_path)
    both = ",".join(PARTS)
    assert environment_of(both, directories) == {"CUDA_VISIBLE_DEVICES": both}
    assert selected_gpu("", {"CUDA_VISIBLE_DEVICES": both}) == both
