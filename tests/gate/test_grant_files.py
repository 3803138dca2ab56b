"""A tenant can read its own grant page, cannot write it, and cannot reach other pages."""

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.grant_file import GRANT_VARIABLE, SLOT_VARIABLE, LiveGrantPages, own_grant, read_grant_descriptor
from cotenant.gate.grant_page import PAGE_BYTES

pytestmark = pytest.mark.live

GRANT = Grant(slot=3, generation=5, kind=Kind.ONLINE, priority=2, share_ppm=1, memory_bytes=1 << 32, slo_ns=50, gpu=0)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[LiveGrantPages]:
    made = LiveGrantPages(tmp_path / "pages")
    yield made
    made.close()


def test_published_grant_is_readable_at_once(pages: LiveGrantPages) -> None:
    handle = pages.publish(GRANT, 0)
    assert read_grant_descriptor(handle) == GRANT
    pages.revoke(3, 5)
    assert read_grant_descriptor(handle) is None
    pages.publish(GRANT, 0)
    assert read_grant_descriptor(handle) == GRANT, "the same file for ever: a slot never moves"


def test_a_tenant_cannot_write_through_its_descriptor(pages: LiveGrantPages) -> None:
    handle = pages.publish(GRANT, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(handle, PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(handle, b"more memory please")
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(handle, 0)
    assert pages.read(3) == GRANT


def test_pages_are_private_files(pages: LiveGrantPages, tmp_path: Path) -> None:
    pages.publish(GRANT, 0)
    assert stat.S_IMODE((tmp_path / "pages").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "pages" / "grant-0003").stat().st_mode) == 0o600


def test_pages_outlive_the_daemon(pages: LiveGrantPages, tmp_path: Path) -> None:
    tenant = os.dup(pages.publish(GRANT, 0))
    pages.close()
    assert read_grant_descriptor(tenant) == GRANT
    after = LiveGrantPages(tmp_path / "pages")
    assert after.read(3) == GRANT
    after.revoke(3, 5)
    assert read_grant_descriptor(tenant) is None
    after.close()
    os.close(tenant)


def test_grants_without_a_holder_are_revoked_at_start(pages: LiveGrantPages, tmp_path: Path) -> None:
    for slot in range(4):
        pages.publish(Grant(slot, 1, Kind.OFFLINE, 7, 0, 0, 0, -1), 0)
    (tmp_path / "pages" / "grant-x").touch()
    pages.keep_only([1, 3])
    assert [slot for slot in range(4) if pages.read(slot) is not None] == [1, 3]


def test_symbolic_link_instead_of_a_page_is_not_followed(pages: LiveGrantPages, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    (tmp_path / "pages" / "grant-0003").symlink_to(precious)
    with pytest.raises(WorldError, match="cannot create the grant page"):
        pages.publish(GRANT, 0)
    assert precious.read_text() == "data"


def test_directory_that_cannot_be_created_raises_world_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="repair its parent directory"):
        LiveGrantPages(tmp_path / "missing" / "pages")


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\0" * PAGE_BYTES, b"x" * PAGE_BYTES, b"COTTERM1" + b"\xff" * 5000]
)
def test_file_of_another_format_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, pytest.raises(PeerError, match="is no grant page"):
        read_grant_descriptor(file.fileno())


def test_descriptor_that_is_no_file_is_rejected() -> None:
    reader, writer = os.pipe()
    for descriptor in (reader, 999_999, 1 << 40):
        with pytest.raises(PeerError, match="is no grant page"):
            read_grant_descriptor(descriptor)
    os.close(reader)
    os.close(writer)


def test_program_inside_a_tenant_reads_its_own_grant(pages: LiveGrantPages) -> None:
    handle = pages.publish(GRANT, 0)
    assert own_grant({GRANT_VARIABLE: str(handle)}) == GRANT
    pages.revoke(3, 5)
    with pytest.raises(WorldError, match="revoked"):
        own_grant({GRANT_VARIABLE: str(handle)})


@pytest.mark.parametrize("named", [None, "", "x", "-1", "1.5", "²", "9" * 5000])
def test_program_outside_a_tenant_has_no_grant(named: str | None) -> None:
    with pytest.raises(ConfigError, match="this process is no tenant; run the program with: cotenant run"):
        own_grant({} if named is None else {GRANT_VARIABLE: named})


def test_grant_of_the_next_holder_of_the_slot_is_not_ours(tmp_path: Path) -> None:
    pages = LiveGrantPages(tmp_path / "pages")
    descriptor = pages.publish(Grant(0, 1, Kind.OFFLINE, 5, 0, 0, 0, -1), 0)
    environ = {GRANT_VARIABLE: str(descriptor), SLOT_VARIABLE: "0/1"}
    assert own_grant(environ).generation == 1
    pages.publish(Grant(0, 2, Kind.ONLINE, 0, 0, 0, 0, -1), 0)
    with pytest.raises(WorldError, match="lost its slot"):
        own_grant(environ)
    pages.close()
