"""The record of a program under `cotenant run` is memory that no other process can change, truncate or take away."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate.shared_pages import ONE_WRITER
from cotenant.hook.launch_ring import latest_kernel
from cotenant.hook.record_socket import RecordSocket
from cotenant.hook.records import open_record, read_records
from cotenant.hook.ring_format import RECORD_BYTES
from cotenant.hook.shim import SEALED_VARIABLE
from tests.support.hook_runs import hook_before, run
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS

SPINS = ("--", sys.executable, str(PROGRAMS / "spins.py"), "3", "ask")


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    done = node_harness.run("softgpu", "create", "--gpu", "v100")
    assert done.returncode == 0, done.stderr
    yield node_harness
    node_harness.run("softgpu", "destroy")


def assert_unchangeable(path: Path) -> None:
    """Fail if a path to a record permits anything but reading."""
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for attempt in (
            lambda: os.pwrite(descriptor, b"\0" * 4096, 0),
            lambda: os.ftruncate(descriptor, 0),
            lambda: os.ftruncate(descriptor, 2 * RECORD_BYTES),
            lambda: mmap.mmap(descriptor, RECORD_BYTES).close(),
            lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                attempt()
    finally:
        os.close(descriptor)


@pytest.mark.live
@pytest.mark.parametrize("command", [("run",), ("profile", "record")])
def test_other_processes_cannot_harm_a_program_through_its_record(command: tuple[str, ...], gpu: NodeHarness) -> None:
    options = (
        ("--gpu", "soft:0", "--task", "spins", "--measure", "always")
        if command == ("run",)
        else (*("--gpu", "soft:0", "--task", "spins"),)
    )
    program = gpu.start(*command, *options, *SPINS, stdin=-1)
    assert program.stdout is not None
    assert program.stdout.readline() == "launched\n"
    home = gpu.directories.runtime / "hook"
    [records] = home.glob("run-*/records")
    until(lambda: list(records.glob("record-*")))
    [record] = records.glob("record-*")
    assert [path.name for path in records.iterdir() if path != record] == ["records.sock"]
    assert stat.S_IMODE((records / "records.sock").stat().st_mode) == 0o600
    assert latest_kernel(home, [int(record.name.split("-")[1])]) == "spin"
    assert [found.calls for found in read_records(records, "spins")] == [6]
    descriptor = open_record(record)
    try:
        for path in (record, record.readlink(), Path(f"/proc/self/fd/{descriptor}")):
            assert_unchangeable(path)
    finally:
        os.close(descriptor)
    for path in records.iterdir():
        path.unlink()
    _, errors = program.communicate("\n", timeout=60)
    assert program.returncode == 0, errors
    [profile] = gpu.json("profile", "list")["profiles"]
    assert (profile["task"], profile["launches"]) == ("spins", 6)


@pytest.mark.live
def test_program_runs_on_without_the_socket(gpu: NodeHarness) -> None:
    remove = ("--", "sh", "-c", 'rm "$COTENANT_RECORD/records.sock"; exec "$@"', "sh")
    done = gpu.run("run", "--gpu", "soft:0", *remove, *SPINS[1:-1])
    assert (done.returncode, done.stdout) == (0, "spun\n"), done.stderr
    assert gpu.json("profile", "list")["profiles"] == []


@pytest.mark.live
def test_record_directory_with_a_long_path_is_used(softgpu: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    hook = hook_before(softgpu, tmp_path / ("x" * 120))
    records = RecordSocket(hook.records)
    try:
        done = run([*SPINS[1:-1]], {**hook.environ("shim"), SEALED_VARIABLE: "1"})
        assert (done.returncode, done.stdout, done.stderr) == (0, "spun\n", "")
        assert [record.calls for record in records.read("spins")] == [6]
        [link] = names(hook.records)
        assert (hook.records / link).readlink().parent == Path(f"/proc/{os.getpid()}/fd")
    finally:
        records.close()


def send(path: Path, frame: bytes, descriptor: int) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        socket.send_fds(connection, [frame], [descriptor])


@contextlib.contextmanager
def memory_file(size_bytes: int = RECORD_BYTES, seals: int = ONE_WRITER) -> Iterator[int]:
    descriptor = os.memfd_create("test-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[RecordSocket]:
    made = RecordSocket(tmp_path)
    yield made
    made.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != "records.sock")


def test_each_record_of_a_process_number_has_its_own_name(records: RecordSocket, tmp_path: Path) -> None:
    with memory_file() as descriptor:
        for _ in range(3):
            send(tmp_path / "records.sock", b"\x09\0\0\0record-77", descriptor)
    assert records.has_record(77)
    assert not records.has_record(7)
    assert names(tmp_path) == ["record-77-0", "record-77-1", "record-77-2"]


@pytest.mark.parametrize(
    "frame",
    [b"\x0b\0\0\0record-../x", b"\x08\0\0\0record-0", b"\x05\0\0\0x-123", b"\x08\0\0\0record-77", b"\0", b"x" * 4096],
)
def test_record_with_an_invalid_name_is_dropped(frame: bytes, records: RecordSocket, tmp_path: Path) -> None:
    with memory_file() as descriptor:
        send(tmp_path / "records.sock", frame, descriptor)
    records.receive()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "size_bytes, seals",
    [
        (RECORD_BYTES - 1, ONE_WRITER),
        *((RECORD_BYTES, ONE_WRITER & ~seal) for seal in (fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, 0x10)),
    ],
)
def test_memory_that_could_change_is_dropped(
    size_bytes: int, seals: int, records: RecordSocket, tmp_path: Path
) -> None:
    with memory_file(size_bytes, seals) as descriptor:
        send(tmp_path / "records.sock", b"\x09\0\0\0record-77", descriptor)
    records.receive()
    assert names(tmp_path) == []


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_connections_and_records_are_bounded(tmp_path: Path) -> None:
    files = open_files()
    records = RecordSocket(tmp_path)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    for connection in silent:
        connection.connect(str(tmp_path / "records.sock"))
    with memory_file() as descriptor:
        for number in range(1, 1100):
            send(tmp_path / "records.sock", b"\x0b\0\0\0record-%04d" % (1000 + number), descriptor)
            if number % 500 == 0:
                records.receive()
        records.receive()
    assert 0 < len(names(tmp_path)) <= 1024
    assert open_files() <= files + 1 + len(silent) + 64 + len(names(tmp_path))
    for connection in silent:
        connection.close()
    records.close()
    assert open_files() == files


def test_link_to_memory_that_could_change_is_not_read(tmp_path: Path) -> None:
    with memory_file(seals=0) as descriptor:
        (tmp_path / "record-1-0").symlink_to(f"/proc/self/fd/{descriptor}")
        with pytest.raises(OSError, match="sealed memory file"):
            open_record(tmp_path / "record-1-0")
