"""Terms pages as files that tenants map: they outlive the daemon, and no stray write of a tenant reaches them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.domain.tenant import Terms
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.policy.schedule import gate

TERMS_VARIABLE: Final = "COTENANT_TERMS_FD"
SLOT_VARIABLE: Final = "COTENANT_SLOT"
_PREFIX: Final = "terms-"


class LivePages:
    """One file per slot, mapped by the node; the handle is a descriptor opened for reading only."""

    def __init__(self, directory: Path) -> None:
        """Keep the pages in this directory; those of an earlier process stay as they are until told otherwise."""
        self._directory = directory
        self._pages: dict[int, tuple[mmap.mmap, int]] = {}
        self._gpu_of: dict[int, int] = {}  # of the slots that we granted
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise WorldError(f"cannot make {directory}: {error.strerror}; mend its parent directory") from None

    def publish(self, terms: Terms, neighbours: int) -> int:
        """Write the terms of a slot; returns the descriptor to hand over."""
        page, handle = self._page(terms.slot)
        gate.write_terms(memoryview(page), terms, neighbours)
        self._gpu_of[terms.slot] = terms.gpu
        return handle

    def revoke(self, slot: int, generation: int) -> None:
        """Say that this generation holds the slot no more; a later holder's terms stay."""
        page, _ = self._page(slot)
        held = gate.read_terms(memoryview(page))
        if held is None or held.generation == generation:
            gate.write_revoked(memoryview(page), slot, generation)
            self._gpu_of.pop(slot, None)

    def read(self, slot: int) -> Terms | None:
        """The terms in force."""
        return gate.read_terms(memoryview(self._page(slot)[0]))

    def crowd(self, gpu: int, neighbours: int) -> None:
        """Change the number of others on a device, and nothing else."""
        for slot in [slot for slot, place in self._gpu_of.items() if place == gpu]:
            page = memoryview(self._page(slot)[0])
            held = gate.read_terms(page)
            if held is not None:
                gate.write_terms(page, held, neighbours)

    def neighbours(self, slot: int) -> int:
        """How many others the holder has; -1 when nobody holds the slot."""
        return gate.read_neighbours(memoryview(self._page(slot)[0]))

    def generations(self) -> dict[int, int]:
        """The latest generation that each page speaks of, granted or revoked: what a lost journal cannot forget."""
        found = {}
        for file in sorted(self._directory.glob(_PREFIX + "*")):
            number = file.name.removeprefix(_PREFIX)
            if number.isdigit():
                found[int(number)] = gate.read_generation(memoryview(self._page(int(number))[0]))
        return found

    def keep_only(self, slots: list[int]) -> None:
        """Revoke what an earlier process left behind for slots that nobody holds."""
        held = dict.fromkeys(slots)
        for file in sorted(self._directory.glob(_PREFIX + "*")):
            number = file.name.removeprefix(_PREFIX)
            if number.isdigit() and int(number) not in held and (terms := self.read(int(number))) is not None:
                self.revoke(int(number), terms.generation)

    def close(self) -> None:
        """Unmap everything; the files stay for the tenants and the next daemon."""
        for page, handle in self._pages.values():
            page.close()
            os.close(handle)
        self._pages.clear()

    def _page(self, slot: int) -> tuple[mmap.mmap, int]:
        known = self._pages.get(slot)
        if known is not None:
            return known
        path = self._directory / f"{_PREFIX}{slot:04d}"
        try:
            writable = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(writable, 0, gate.PAGE_BYTES)  # a full disk is said here, not by SIGBUS later
                page = mmap.mmap(writable, gate.PAGE_BYTES)
            finally:
                os.close(writable)
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise WorldError(f"cannot make the page {path}: {error.strerror}; mend its directory") from None
        gate.format_page(memoryview(page))
        self._pages[slot] = (page, handle)
        return page, handle


def read_page(descriptor: int) -> Terms | None:
    """What a page says that somebody handed us; raises `PeerError` when it is no page."""
    try:
        with mmap.mmap(descriptor, gate.PAGE_BYTES, access=mmap.ACCESS_READ) as page:
            return gate.read_terms(page)  # type: ignore[arg-type]  # an mmap is a buffer, typeshed does not say so
    except (OSError, ValueError, OverflowError) as error:
        raise PeerError(f"descriptor {descriptor} is no terms page: {error}") from None


def slot_text(terms: Terms) -> str:
    """Which slot, in which generation: what tells a tenant's own terms from those of whoever came after it."""
    return f"{terms.slot}/{terms.generation}"


def own_terms(environ: Mapping[str, str]) -> Terms:
    """The terms of the tenant we run in; raises `ConfigError` outside of one and `WorldError` when they are revoked."""
    named, held = environ.get(TERMS_VARIABLE, ""), environ.get(SLOT_VARIABLE, "")
    if not (named.isascii() and named.isdigit() and len(named) < 20):
        raise ConfigError(TERMS_VARIABLE, named, "this is not a tenant; run the program with: cotenant run -- COMMAND")
    terms = read_page(int(named))
    if terms is None or held not in ("", slot_text(terms)):  # the slot may have another holder by now
        raise WorldError("the node revoked our terms; the tenant lost its slot and should end")
    return terms
