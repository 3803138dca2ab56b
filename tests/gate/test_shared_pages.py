"""Shared pages have one writer: no holder of a descriptor can write, resize or reopen them, whatever it tries."""

import ctypes
import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotenant.errors import PeerError
from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.shared_pages import ArbitrationPage, SealedPage, check_process_pages
from cotenant.gate.tenant_table import PAGE_BYTES

FUTURE_WRITE = 0x0010
PUNCH_HOLE_AND_KEEP_SIZE = 3


@contextmanager
def sealed_page(size_bytes: int = PROCESS_BYTES) -> Iterator[SealedPage]:
    page = SealedPage.create("test", size_bytes)
    yield page
    page.close()


def punch_hole(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_int64
    if libc.fallocate(descriptor, PUNCH_HOLE_AND_KEEP_SIZE, offset(0), offset(PAGE_BYTES)):
        raise OSError(ctypes.get_errno(), "fallocate")


def test_writer_changes_what_readers_have_mapped() -> None:
    with sealed_page() as page, mmap.mmap(page.descriptor, PROCESS_BYTES, prot=mmap.PROT_READ) as reader:
        page.memory[5:8] = b"abc"
        assert reader[5:8] == b"abc"


@pytest.mark.parametrize("size_bytes", [0, 1, PAGE_BYTES, PROCESS_BYTES + PAGE_BYTES])
def test_sealed_page_cannot_be_resized(size_bytes: int) -> None:
    with sealed_page() as page, pytest.raises(PermissionError):
        os.ftruncate(page.descriptor, size_bytes)


def test_sealed_page_cannot_be_written_through_a_descriptor() -> None:
    with sealed_page() as page:
        with pytest.raises(PermissionError):
            os.pwrite(page.descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(page.descriptor, PROCESS_BYTES)
        with pytest.raises(PermissionError):
            punch_hole(page.descriptor)
        with pytest.raises(PermissionError):
            fcntl.fcntl(page.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert not any(page.memory[:])


def test_sealed_page_stays_read_only_if_it_is_reopened() -> None:
    with sealed_page() as page:
        reopened = os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDWR)
        try:
            with pytest.raises(PermissionError):
                os.pwrite(reopened, b"x", 0)
            with pytest.raises(PermissionError):
                mmap.mmap(reopened, PROCESS_BYTES)
            with pytest.raises(PermissionError):
                os.ftruncate(reopened, 0)
        finally:
            os.close(reopened)
        with pytest.raises(PermissionError):
            os.truncate(f"/proc/self/fd/{page.descriptor}", 0)
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDWR | os.O_TRUNC)


def test_read_only_mapping_cannot_become_writable() -> None:
    with sealed_page() as page:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        address = libc.mmap(None, PAGE_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, page.descriptor, ctypes.c_int64(0))
        assert libc.mprotect(ctypes.c_void_p(address), PAGE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE) == -1
        libc.munmap(ctypes.c_void_p(address), PAGE_BYTES)


def test_arbitration_page_can_be_written_by_all_and_resized_by_none() -> None:
    page = ArbitrationPage.create("test")
    with mmap.mmap(page.descriptor, PAGE_BYTES) as other:
        other[0:1] = b"x"
        assert page.memory[0:1] == b"x"
    for size_bytes in (0, 2 * PAGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(page.descriptor, size_bytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(page.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)  # would keep the others from mapping it
    page.close()


def test_valid_process_pages_are_mapped_for_reading() -> None:
    with sealed_page() as page, check_process_pages(page.descriptor) as memory:
        page.memory[0:3] = b"abc"
        assert bytes(memory[:4]) == b"abc\0"
        with pytest.raises(TypeError):
            memory[0] = 1


@pytest.mark.parametrize("size_bytes", [PAGE_BYTES, PROCESS_BYTES - 1, PROCESS_BYTES + PAGE_BYTES])
def test_process_pages_of_another_size_are_refused(size_bytes: int) -> None:
    with sealed_page(size_bytes) as page, pytest.raises(PeerError, match=f"have {size_bytes}"):
        check_process_pages(page.descriptor)


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, FUTURE_WRITE, fcntl.F_SEAL_SEAL])
def test_process_pages_without_one_of_the_seals_are_refused(missing: int) -> None:
    """Without any of them the process could shrink the file later, or pass it on to another writer."""
    all_seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | FUTURE_WRITE | fcntl.F_SEAL_SEAL
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, PROCESS_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, all_seals & ~missing)
        with pytest.raises(PeerError, match="must be sealed"):
            check_process_pages(descriptor)
    finally:
        os.close(descriptor)


def test_other_kinds_of_descriptors_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pages"
    file.write_bytes(bytes(PROCESS_BYTES))
    reading, writing = os.pipe()
    with file.open("r+b") as opened, socket.socket() as unconnected, Path("/dev/zero").open("rb") as device:
        for descriptor in (opened.fileno(), unconnected.fileno(), device.fileno(), reading, writing):
            with pytest.raises(PeerError, match="memory file"):
                check_process_pages(descriptor)
    os.close(reading)
    os.close(writing)
    with pytest.raises(PeerError, match="memory file"):
        check_process_pages(reading)  # closed
