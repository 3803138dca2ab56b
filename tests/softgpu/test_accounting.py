"""Device memory by account: all processes of one name together, every kind of memory, the process that dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram, scripted_programs
from tests.support.nvml_library import device_of
from tests.support.software_gpus import start

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

MIB = 1 << 20
CONTEXT = 300 * MIB
CODE = 4096  # the image of the test programs is smaller than one unit


@pytest.fixture
def costly(tmp_path: Path) -> Iterator[Path]:
    """A soft V100 on which contexts and code take memory, as on hardware."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, context_bytes=CONTEXT, counts_code=True)
    yield directory
    manage.destroy(directory)


def account(directory: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {one["account"]: one for one in manage.inspect(directory, 0)["accounts"]}[name]
    return found


def sizes(directory: Path, name: str) -> tuple[int, int]:
    found = account(directory, name)
    return found["memory_bytes"], found["memory_peak_bytes"]


def test_an_account_is_all_its_processes_together(softgpu: Path) -> None:
    with (
        scripted_programs(softgpu, 2, SOFTGPU_ACCOUNT="tenant-1") as [one, other],
        scripted_programs(softgpu, 1) as [stranger],
    ):
        one.do("alloc", 3 * MIB)
        name = other.do("alloc", 2 * MIB)
        stranger.do("alloc", 7 * MIB)
        assert sizes(softgpu, "tenant-1") == (5 * MIB, 5 * MIB)
        other.do("free", name)
        assert sizes(softgpu, "tenant-1") == (3 * MIB, 5 * MIB)
        one.kill()
        assert sizes(softgpu, "tenant-1") == (0, 5 * MIB)
        other.do("alloc", 4 * MIB)
        assert sizes(softgpu, "tenant-1") == (4 * MIB, 5 * MIB)
        (found,) = manage.inspect(softgpu, 0)["accounts"]
        assert (found["clients"], found["connected"]) == (1, 2)
        named = {client["pid"]: client["account"] for client in manage.inspect(softgpu, 0)["clients"]}
        assert named == {other.process.pid: "tenant-1", stranger.process.pid: ""}
    assert account(softgpu, "tenant-1")["clients"] == 0
    assert sizes(softgpu, "tenant-1") == (0, 5 * MIB)


def test_shared_memory_stays_with_the_account_that_made_it(softgpu: Path) -> None:
    maker, taker = ScriptedProgram(softgpu, SOFTGPU_ACCOUNT="maker"), ScriptedProgram(softgpu, SOFTGPU_ACCOUNT="taker")
    try:
        handle = maker.do("ipc_get", maker.do("alloc", 2 * MIB))
        opened = taker.do("ipc_open", handle)
        assert sizes(softgpu, "maker") == (2 * MIB, 2 * MIB)
        maker.kill()
        # The client who holds it owes it to the device; the account who made it owes it all the same.
        (client,) = manage.inspect(softgpu, 0)["clients"]
        assert client["counters"]["memory_bytes"] == 2 * MIB
        assert (sizes(softgpu, "maker"), sizes(softgpu, "taker")) == ((2 * MIB, 2 * MIB), (0, 0))
        taker.do("ipc_close", opened)
        assert (sizes(softgpu, "maker"), sizes(softgpu, "taker")) == ((0, 2 * MIB), (0, 0))
    finally:
        maker.kill()
        taker.kill()


def test_contexts_and_code_take_memory_where_asked(costly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_programs(costly, 1, SOFTGPU_ACCOUNT="t") as [puppet], device_of(costly, monkeypatch) as device:
        total = manage.inspect(costly, 0)["memory_bytes"]

        def taken() -> int:
            seen = total - puppet.do("free_bytes")
            (process,) = nv.nvmlDeviceGetComputeRunningProcesses(device)
            (now, _) = sizes(costly, "t")
            assert process.usedGpuMemory == now == seen
            return now

        base = CONTEXT + CODE
        assert taken() == base
        module = puppet.do("load")
        assert taken() == base + CODE
        puppet.do("unload", module)
        assert taken() == base
        library = puppet.do("load_library")
        assert taken() == base  # nobody has used it in a context
        puppet.do("launch_of", library)
        puppet.do("launch_of", library)
        assert taken() == base + CODE
        context = puppet.do("new_context")
        assert taken() == base + CODE + CONTEXT
        puppet.do("launch_of", library)
        assert taken() == base + 2 * CODE + CONTEXT
        puppet.do("end_context", context)
        assert taken() == base + CODE
        puppet.do("unload_library", library)
        assert taken() == base
    assert sizes(costly, "t") == (0, base + 2 * CODE + CONTEXT)


def test_code_without_room_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, memory_bytes=4 * MIB, counts_code=True)
    try:
        with scripted_programs(directory, 1, SOFTGPU_ACCOUNT="t") as [puppet]:
            library = puppet.do("load_library")
            rest = puppet.do("alloc", puppet.do("free_bytes"))
            full = sizes(directory, "t")
            assert full == (4 * MIB, 4 * MIB)
            assert puppet.code("load") == puppet.code("launch_of", library) == "CUDA_ERROR_OUT_OF_MEMORY"
            assert sizes(directory, "t") == full
            puppet.do("free", rest)
            puppet.do("launch_of", library)
            assert sizes(directory, "t") == (2 * CODE, 4 * MIB)
    finally:
        manage.destroy(directory)


def test_every_kind_of_memory_is_in_the_account(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1, SOFTGPU_ACCOUNT="t") as [puppet]:
        pool = puppet.do("pool_make")
        kinds = [
            ("alloc", (MIB,), MIB),
            ("create", (2 * MIB,), 2 * MIB),
            ("pool_alloc", (pool, MIB), 2 * MIB),  # pools count by what they reserved
            ("array", (65536,), 65536),
        ]
        expected = 0
        for name, arguments, more in kinds:
            puppet.do(name, *arguments)
            expected += more
            assert sizes(softgpu, "t") == (expected, expected), name
        managed = puppet.do("managed", 5 * MIB)
        assert sizes(softgpu, "t") == (expected, expected)
        (client,) = manage.inspect(softgpu, 0)["clients"]
        assert client["managed_bytes"] == 5 * MIB
        puppet.do("free", managed)
        (client,) = manage.inspect(softgpu, 0)["clients"]
        assert client["managed_bytes"] == 0


@pytest.mark.parametrize("name", ["x" * 64, 'quo"te', "two words"])
def test_a_name_that_cannot_be_one_is_refused(softgpu: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGPU_ACCOUNT", name)
    process = start(softgpu, "worker.py")
    _, said = process.communicate(timeout=60)
    assert "CUDA_ERROR_INVALID_VALUE" in said
    assert manage.inspect(softgpu, 0)["accounts"] == []
