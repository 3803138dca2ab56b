"""Grant pages as files that tenants map read-only; they outlive the daemon."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.gate import grant_page
from cotenant.gate.grant import Grant

GRANT_VARIABLE: Final = "COTENANT_GRANT_FD"
SLOT_VARIABLE: Final = "COTENANT_SLOT"
_PREFIX: Final = "grant-"


class LiveGrantPages:
    """One file per slot, mapped by the node; the handle is a read-only descriptor."""

    def __init__(self, directory: Path) -> None:
        """Keep the pages in this directory; pages of an earlier process stay as they are."""
        self._directory = directory
        self._pages: dict[int, tuple[mmap.mmap, int]] = {}
        self._gpu_of: dict[int, int] = {}  # of the slots granted by this process
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorldError(f"cannot create {directory}: {error.strerror}; repair its parent directory") from None

    def publish(self, grant: Grant, neighbours: int) -> int:
        """Write the grant of a slot and return the descriptor for its tenant."""
        page, handle = self._page(grant.slot)
        grant_page.write_grant(memoryview(page), grant, neighbours)
        self._gpu_of[grant.slot] = grant.gpu
        return handle

    def revoke(self, slot: int, generation: int) -> None:
        """Revoke the grant of this generation; the grant of a later generation stays."""
        page, _ = self._page(slot)
        held = grant_page.read_grant(memoryview(page))
        if held is None or held.generation == generation:
            grant_page.write_revoked(memoryview(page), slot, generation)
            self._gpu_of.pop(slot, None)

    def read(self, slot: int) -> Grant | None:
        """Return the grant of a slot; None if it is free."""
        return grant_page.read_grant(memoryview(self._page(slot)[0]))

    def set_neighbour_count(self, gpu: int, neighbours: int) -> None:
        """Change the number of other tenants on the pages of a device."""
        for slot in [slot for slot, device in self._gpu_of.items() if device == gpu]:
            page = memoryview(self._page(slot)[0])
            held = grant_page.read_grant(page)
            if held is not None:
                grant_page.write_grant(page, held, neighbours)

    def neighbours(self, slot: int) -> int:
        """Return the number of other tenants on the slot's device; -1 if the slot is free."""
        return grant_page.read_neighbours(memoryview(self._page(slot)[0]))

    def generations(self) -> dict[int, int]:
        """Return the latest generation on each page, granted or revoked; they survive the loss of the journal."""
        generations = {}
        for file in sorted(self._directory.glob(_PREFIX + "*")):
            number = file.name.removeprefix(_PREFIX)
            if number.isdigit():
                generations[int(number)] = grant_page.read_generation(memoryview(self._page(int(number))[0]))
        return generations

    def keep_only(self, slots: list[int]) -> None:
        """Revoke the grants that an earlier process left in slots other than these."""
        kept = dict.fromkeys(slots)
        for file in sorted(self._directory.glob(_PREFIX + "*")):
            number = file.name.removeprefix(_PREFIX)
            if number.isdigit() and int(number) not in kept and (grant := self.read(int(number))) is not None:
                self.revoke(int(number), grant.generation)

    def close(self) -> None:
        """Unmap the pages; the files stay for the tenants and the next daemon."""
        for page, handle in self._pages.values():
            page.close()
            os.close(handle)
        self._pages.clear()

    def _page(self, slot: int) -> tuple[mmap.mmap, int]:
        opened = self._pages.get(slot)
        if opened is not None:
            return opened
        path = self._directory / f"{_PREFIX}{slot:04d}"
        try:
            writable = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # A full disk is reported here, not by SIGBUS later.
                os.posix_fallocate(writable, 0, grant_page.PAGE_BYTES)
                page = mmap.mmap(writable, grant_page.PAGE_BYTES)
            finally:
                os.close(writable)
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise WorldError(f"cannot create the grant page {path}: {error.strerror}; repair its directory") from None
        grant_page.format_page(memoryview(page))
        self._pages[slot] = (page, handle)
        return page, handle


def read_grant_descriptor(descriptor: int) -> Grant | None:
    """Return the grant on the page of a descriptor; raise `PeerError` if it is no grant page."""
    try:
        with mmap.mmap(descriptor, grant_page.PAGE_BYTES, access=mmap.ACCESS_READ) as page:
            return grant_page.read_grant(page)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
    except (OSError, ValueError, OverflowError) as error:
        raise PeerError(f"descriptor {descriptor} is no grant page: {error}") from None


def slot_text(grant: Grant) -> str:
    """Return SLOT/GENERATION, which distinguishes a tenant's grant from that of a later holder of the slot."""
    return f"{grant.slot}/{grant.generation}"


def own_grant(environ: Mapping[str, str]) -> Grant:
    """Return the grant of the tenant that this process belongs to.

    Raise `ConfigError` outside a tenant and `WorldError` if the grant was revoked.
    """
    descriptor, slot = environ.get(GRANT_VARIABLE, ""), environ.get(SLOT_VARIABLE, "")
    if not (descriptor.isascii() and descriptor.isdigit() and len(descriptor) < 20):
        raise ConfigError(
            GRANT_VARIABLE, descriptor, "this process is no tenant; run the program with: cotenant run -- COMMAND"
        )
    grant = read_grant_descriptor(int(descriptor))
    if grant is None or slot not in ("", slot_text(grant)):  # the slot may have another holder
        raise WorldError("the node revoked the grant: the tenant lost its slot and should end")
    return grant
