"""Device memory and events shared between processes: the same bytes, counted once, released after any death."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram, scripted_programs
from tests.support.software_gpus import run

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

UNIT = 2 << 20
INVALID = "CUDA_ERROR_INVALID_VALUE"


def used(directory: Path) -> int:
    counters = manage.inspect(directory, 0)
    return int(counters["memory_bytes"]) - int(counters["memory_free_bytes"])


def used_by(directory: Path, program: ScriptedProgram) -> int:
    clients = manage.inspect(directory, 0)["clients"]
    return next(int(client["counters"]["memory_bytes"]) for client in clients if client["pid"] == program.process.pid)


def hand_over(
    exporter: ScriptedProgram, export_command: str, importer: ScriptedProgram, import_command: str, name: int
) -> Any:
    """Export an object as a descriptor in one process and import it in the other."""
    descriptor = exporter.do(export_command, name)
    try:
        return importer.do(import_command, descriptor=descriptor)
    finally:
        os.close(descriptor)


def map_memory(program: ScriptedProgram, handle: int, size: int = UNIT) -> int:
    address = int(program.do("reserve", size))
    program.do("map", address, size, handle)
    program.do("access", address, size)
    return address


def test_exported_memory_is_the_same_memory_and_counted_once(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        handle = exporter.do("create", UNIT)
        address = map_memory(exporter, handle)
        exporter.do("fill", address, 1, UNIT)
        exporter.do("sync")
        imported = hand_over(exporter, "export", importer, "import", handle)
        imported_address = map_memory(importer, imported)
        assert importer.do("read", imported_address, 3) == "010101"
        importer.do("fill", imported_address, 2, 1)
        importer.do("sync")
        assert exporter.do("read", address, 3) == "020101"
        assert used(softgpu) == used_by(softgpu, exporter) == UNIT
        assert used_by(softgpu, importer) == 0
        # Its creator releases it while the importer still holds it: it stays charged to its creator.
        exporter.do("release", handle)
        exporter.do("unmap", address, UNIT)
        assert used_by(softgpu, exporter) == UNIT
        importer.do("release", imported)
        assert importer.do("read", imported_address, 3) == "020101"
        importer.do("unmap", imported_address, UNIT)
        assert used(softgpu) == 0


def test_shared_memory_outlives_its_killed_creator(softgpu: Path) -> None:
    with scripted_programs(softgpu, 3) as [exporter, importer, other]:
        own = exporter.do("create", UNIT)
        exporter.do("fill", map_memory(exporter, own), 9, 4)
        exporter.do("sync")
        address = map_memory(importer, hand_over(exporter, "export", importer, "import", own))
        pool = exporter.do("pool_make")
        exporter.do("pool_alloc", pool, UNIT)
        hand_over(exporter, "pool_export", other, "pool_import", pool)
        exporter.kill()
        assert importer.do("read", address, 4) == "09" * 4
        assert used_by(softgpu, importer) == UNIT
        assert used_by(softgpu, other) == UNIT
        other.kill()
        assert importer.do("read", address, 4) == "09" * 4
        assert used(softgpu) == UNIT
        importer.kill()
        assert used(softgpu) == 0


def test_killed_importer_leaves_the_memory_to_its_creator(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        pointer = exporter.do("alloc", 1000)
        handle = exporter.do("ipc_get", pointer)
        assert used_by(softgpu, exporter) == 1024
        importer.do("ipc_open", handle)
        exporter.do("free", pointer)
        assert used_by(softgpu, exporter) == 1024
        importer.kill()
        assert exporter.do("sync") == []
        assert used(softgpu) == 0


def test_importer_can_reopen_memory_of_a_dead_exporter(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        pointer = exporter.do("alloc", 1000)
        handle = exporter.do("ipc_get", pointer)
        opened = importer.do("ipc_open", handle)
        exporter.kill()
        assert used_by(softgpu, importer) == 1024
        assert importer.do("ipc_open", handle) == opened
        importer.do("ipc_close", opened)
        importer.do("fill", opened, 5, 2)
        assert importer.do("read", opened, 2) == "0505"
        importer.do("ipc_close", opened)
        assert used(softgpu) == 0


def test_handle_opens_in_other_processes_while_its_memory_exists(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        neighbour, pointer = exporter.do("alloc", 100), exporter.do("alloc", 100)
        exporter.do("fill", neighbour, 1, 100)
        exporter.do("fill", pointer, 2, 100)
        handle = exporter.do("ipc_get", pointer)
        assert exporter.do("read", pointer, 2) == "0202"  # queued before it was shared
        assert exporter.do("ipc_get", pointer) == handle
        assert exporter.code("ipc_open", handle) == "CUDA_ERROR_INVALID_CONTEXT"
        opened = importer.do("ipc_open", handle)
        assert importer.do("ipc_open", handle) == opened
        assert importer.do("read", opened, 100) == "02" * 100
        assert importer.do("range", opened + 7) == [opened, 100]
        assert importer.code("read", opened, 101) == INVALID
        assert importer.code("free", opened) == INVALID
        importer.do("fill", opened, 3, 1)
        importer.do("sync")
        assert exporter.do("read", pointer, 2) == "0302"
        assert exporter.do("read", neighbour, 1) == "01"
        importer.do("ipc_close", opened)
        assert importer.do("read", opened, 1) == "03"
        importer.do("ipc_close", opened)
        assert importer.code("ipc_close", opened) == INVALID
        exporter.do("free", pointer)
        assert importer.code("ipc_open", handle) == "CUDA_ERROR_INVALID_HANDLE"
        assert importer.code("ipc_open", "00" * 64) == "CUDA_ERROR_INVALID_HANDLE"
        assert used(softgpu) == 512
        again = exporter.do("alloc", 100)
        assert exporter.do("read", again, 2) == "0000"


def test_unshareable_memory_cannot_be_exported(softgpu: Path) -> None:
    with scripted_programs(softgpu, 1) as [program]:
        private = program.do("create", UNIT, exportable=False)
        assert program.code("export", private) == INVALID
        pool = program.do("pool_make", exportable=False)
        assert program.code("pool_export", pool) == INVALID
        pointer = program.do("pool_alloc", pool, 100)
        assert program.code("ipc_get", pointer) == INVALID
        assert program.code("export_pointer", pointer) == INVALID
        with Path("/dev/null").open() as nothing:
            assert program.code("import", descriptor=nothing.fileno()) == INVALID
            assert program.code("pool_import", descriptor=nothing.fileno()) == INVALID
        shared = program.do("pool_make")
        descriptor = program.do("pool_export", shared)
        assert program.code("import", descriptor=descriptor) == INVALID  # a pool is no allocation
        os.close(descriptor)


def test_allocations_of_an_imported_pool_are_shared(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        pool = exporter.do("pool_make")
        first, second = exporter.do("pool_alloc", pool, 1000), exporter.do("pool_alloc", pool, 5000)
        exporter.do("fill", second, 4, 5000)
        exporter.do("sync")
        borrowed = hand_over(exporter, "pool_export", importer, "pool_import", pool)
        assert importer.code("pool_alloc", borrowed, 100) == INVALID
        ticket = exporter.do("export_pointer", second)
        pointer = importer.do("import_pointer", borrowed, ticket)
        assert importer.do("read", pointer, 5000) == "04" * 5000
        assert importer.code("import_pointer", borrowed, ticket) == "CUDA_ERROR_ALREADY_MAPPED"
        assert importer.code("import_pointer", borrowed, "00" * 64) == INVALID
        assert used(softgpu) == used_by(softgpu, exporter) == UNIT
        importer.do("free_async", pointer)
        importer.do("sync")
        importer.do("pool_destroy", borrowed)
        exporter.do("free", first)
        exporter.do("free", second)
        exporter.do("pool_destroy", pool)
        assert used(softgpu) == 0


def test_event_orders_work_and_memory_across_processes(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        pointer = exporter.do("alloc", 100)
        opened = importer.do("ipc_open", exporter.do("ipc_get", pointer))
        event = exporter.do("event_make")
        opened_event = importer.do("event_open", exporter.do("event_get", event))
        assert importer.do("event_query", opened_event) == []  # never recorded is complete
        exporter.do("hold")
        exporter.do("fill", pointer, 6, 100)
        exporter.do("event_record", event)
        assert importer.code("event_query", opened_event) == "CUDA_ERROR_NOT_READY"
        importer.do("event_wait", opened_event)
        # The copy waits for the exporter's event and its memory, although the exporter has not synchronized.
        importer.tell("read", opened, 3)
        exporter.do("let_go")
        assert importer.receive()[:2] == ("CUDA_SUCCESS", ["060606"])
        assert importer.do("event_query", opened_event) == []
        # The other way round: recorded here, waited for there.
        importer.do("fill", opened, 8, 100)
        importer.do("event_record", opened_event)
        exporter.do("event_sync", event)
        assert exporter.do("read", pointer, 3) == "080808"


def test_waiters_of_a_killed_process_go_on(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        event = exporter.do("event_make")
        opened_event = importer.do("event_open", exporter.do("event_get", event))
        exporter.do("spin", 1_000_000_000_000)
        exporter.do("event_record", event)
        assert importer.code("event_query", opened_event) == "CUDA_ERROR_NOT_READY"
        importer.tell("event_sync", opened_event)
        exporter.kill()
        assert importer.receive()[0] == "CUDA_SUCCESS"  # the event of a dead process counts as complete
        importer.do("event_query", opened_event)
        importer.do("event_wait", opened_event)
        importer.do("sync")
        importer.do("event_destroy", opened_event)


def test_event_flags_determine_whether_it_can_be_shared(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        assert exporter.code("event_make", 4) == INVALID  # one that keeps time cannot be shared
        plain = exporter.do("event_make", 2)
        assert exporter.code("event_get", plain) == "CUDA_ERROR_INVALID_HANDLE"
        event = exporter.do("event_make")
        handle = exporter.do("event_get", event)
        assert exporter.code("event_open", handle) == "CUDA_ERROR_INVALID_CONTEXT"
        exporter.do("event_destroy", event)
        assert importer.code("event_open", handle) == "CUDA_ERROR_INVALID_HANDLE"
        assert importer.code("event_open", "11" * 64) == "CUDA_ERROR_INVALID_HANDLE"


def test_handles_of_an_invisible_device_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 2)
    first, second = (ScriptedProgram(directory, CUDA_VISIBLE_DEVICES=str(number)) for number in range(2))
    both = ScriptedProgram(directory, CUDA_VISIBLE_DEVICES="1,0")
    try:
        pointer = first.do("alloc", 100)
        first.do("fill", pointer, 5, 100)
        handle = first.do("ipc_get", pointer)
        first.do("sync")
        assert second.code("ipc_open", handle) == "CUDA_ERROR_INVALID_DEVICE"
        assert second.code("event_open", first.do("event_get", first.do("event_make"))) == "CUDA_ERROR_INVALID_DEVICE"
        descriptor = first.do("export", first.do("create", UNIT))
        assert second.code("import", descriptor=descriptor) == INVALID
        os.close(descriptor)
        # A process that numbers the devices differently can open it.
        assert both.do("read", both.do("ipc_open", handle), 2) == "0505"
    finally:
        for program in (first, second, both):
            program.kill()
        manage.destroy(directory)


def test_shared_memory_outlives_its_context(softgpu: Path) -> None:
    with scripted_programs(softgpu, 2) as [exporter, importer]:
        pointer = exporter.do("alloc", 512)
        exporter.do("fill", pointer, 3, 512)
        opened = importer.do("ipc_open", exporter.do("ipc_get", pointer))
        exporter.do("destroy_context")
        assert importer.do("read", opened, 2) == "0303"
        assert used_by(softgpu, exporter) == 512
        importer.do("ipc_close", opened)
        assert used(softgpu) == 0


def test_cuda_core_shares_buffers_with_child_processes(softgpu: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert "core shares" in run(softgpu, "coreshares.py")
    assert used(softgpu) == 0
