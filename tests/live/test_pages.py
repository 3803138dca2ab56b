"""Can a tenant read its page, only read it, and only its page?"""

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.domain.tenant import Kind, Terms
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.live.page import SLOT_VARIABLE, TERMS_VARIABLE, LivePages, own_terms, read_page
from cotenant.policy.schedule.gate import PAGE_BYTES

TERMS = Terms(slot=3, generation=5, kind=Kind.ONLINE, priority=2, share_ppm=1, memory_bytes=1 << 32, slo_ns=50, gpu=0)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[LivePages]:
    made = LivePages(tmp_path / "pages")
    yield made
    made.close()


def test_what_the_node_publishes_the_tenant_reads_at_once(pages: LivePages) -> None:
    handle = pages.publish(TERMS, 0)
    assert read_page(handle) == TERMS
    pages.revoke(3, 5)
    assert read_page(handle) is None
    pages.publish(TERMS, 0)
    assert read_page(handle) == TERMS, "the same file for ever: a slot never moves"


def test_a_tenant_cannot_write_through_its_descriptor(pages: LivePages) -> None:
    handle = pages.publish(TERMS, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(handle, PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(handle, b"more memory please")
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(handle, 0)
    assert pages.read(3) == TERMS


def test_pages_are_private_files(pages: LivePages, tmp_path: Path) -> None:
    pages.publish(TERMS, 0)
    assert stat.S_IMODE((tmp_path / "pages").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "pages" / "terms-0003").stat().st_mode) == 0o600


def test_pages_outlive_the_daemon(pages: LivePages, tmp_path: Path) -> None:
    tenant = os.dup(pages.publish(TERMS, 0))
    pages.close()
    assert read_page(tenant) == TERMS
    after = LivePages(tmp_path / "pages")
    assert after.read(3) == TERMS
    after.revoke(3, 5)
    assert read_page(tenant) is None
    after.close()
    os.close(tenant)


def test_what_nobody_holds_any_more_is_revoked_at_the_start(pages: LivePages, tmp_path: Path) -> None:
    for slot in range(4):
        pages.publish(Terms(slot, 1, Kind.OFFLINE, 7, 0, 0, 0, -1), 0)
    (tmp_path / "pages" / "terms-x").touch()
    pages.keep_only([1, 3])
    assert [slot for slot in range(4) if pages.read(slot) is not None] == [1, 3]


def test_a_link_in_the_place_of_a_page_is_not_followed(pages: LivePages, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    (tmp_path / "pages" / "terms-0003").symlink_to(precious)
    with pytest.raises(WorldError, match="cannot make the page"):
        pages.publish(TERMS, 0)
    assert precious.read_text() == "data"


def test_a_directory_that_cannot_be_made_is_a_world_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="mend its parent directory"):
        LivePages(tmp_path / "missing" / "pages")


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\0" * PAGE_BYTES, b"x" * PAGE_BYTES, b"COTTERM1" + b"\xff" * 5000]
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, pytest.raises(PeerError, match="is no terms page"):
        read_page(file.fileno())


def test_a_descriptor_that_is_no_file_is_refused() -> None:
    reader, writer = os.pipe()
    for descriptor in (reader, 999_999, 1 << 40):
        with pytest.raises(PeerError, match="is no terms page"):
            read_page(descriptor)
    os.close(reader)
    os.close(writer)


def test_inside_a_tenant_the_terms_are_its_own(pages: LivePages) -> None:
    handle = pages.publish(TERMS, 0)
    assert own_terms({TERMS_VARIABLE: str(handle)}) == TERMS
    pages.revoke(3, 5)
    with pytest.raises(WorldError, match="revoked"):
        own_terms({TERMS_VARIABLE: str(handle)})


@pytest.mark.parametrize("named", [None, "", "x", "-1", "1.5", "²", "9" * 5000])
def test_outside_a_tenant_there_are_none(named: str | None) -> None:
    with pytest.raises(ConfigError, match="this is not a tenant; run the program with: cotenant run"):
        own_terms({} if named is None else {TERMS_VARIABLE: named})


def test_terms_of_whoever_came_after_us_are_not_ours(tmp_path: Path) -> None:
    pages = LivePages(tmp_path / "pages")
    descriptor = pages.publish(Terms(0, 1, Kind.OFFLINE, 5, 0, 0, 0, -1), 0)
    environ = {TERMS_VARIABLE: str(descriptor), SLOT_VARIABLE: "0/1"}
    assert own_terms(environ).generation == 1
    pages.publish(Terms(0, 2, Kind.ONLINE, 0, 0, 0, 0, -1), 0)
    with pytest.raises(WorldError, match="lost its slot"):
        own_terms(environ)
    pages.close()
