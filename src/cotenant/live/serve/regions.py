"""Which stretches of system shared memory do clients share with the server? Registered by name, mapped once each."""

from __future__ import annotations

import mmap
import os
import re
import stat
from typing import Final, NamedTuple

from cotenant.format.infer import InferError, Place, shown

REGIONS_LIMIT: Final = 1024
_KEY: Final = re.compile(r"/?[A-Za-z0-9._][A-Za-z0-9._-]{0,250}\Z")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  where POSIX shared memory lives on Linux


class Region(NamedTuple):
    """A registered stretch of a shared-memory object."""

    key: str
    offset: int
    size: int
    memory: mmap.mmap


class Regions:
    """All that is registered."""

    def __init__(self) -> None:
        """Nothing is."""
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Map a stretch of a shared-memory object under a name."""
        if name in self._regions:
            raise InferError(f"shared memory region {shown(name)} is registered already, unregister it first")
        if len(self._regions) >= REGIONS_LIMIT:
            raise InferError(f"{REGIONS_LIMIT} shared memory regions are registered, which is the limit", "exhausted")
        if not name or not _KEY.match(key) or set(key.strip("/")) == {"."}:
            raise InferError(f"shared memory key {shown(key)} is no name of a shared-memory object")
        if offset < 0 or size <= 0:
            raise InferError(f"region {shown(name)}: offset {offset} and byte_size {size}, expected a stretch that is")
        self._regions[name] = Region(key, offset, size, _mapped(name, key, offset + size))

    def unregister(self, name: str) -> None:
        """Forget one, or all if the name is empty; what runs still holds its own view."""
        for one in [name] if name else list(self._regions):
            self._regions.pop(one, None)

    def status(self, name: str) -> dict[str, Region]:
        """One of them, or all if the name is empty."""
        if not name:
            return dict(self._regions)
        if name not in self._regions:
            raise InferError(f"no shared memory region {shown(name)} is registered", "not-found")
        return {name: self._regions[name]}

    def view(self, tensor: str, place: Place) -> memoryview:
        """The memory at a place, to read or to write."""
        region = self._regions.get(place.region)
        if region is None:
            raise InferError(f"tensor {tensor!r}: no shared memory region {shown(place.region)} is registered")
        if place.offset + place.size > region.size:
            want = f"expected at most {region.size}, the size of region {shown(place.region)}"
            raise InferError(f"tensor {tensor!r} ends at byte {place.offset + place.size}, {want}")
        begin = region.offset + place.offset
        return memoryview(region.memory)[begin : begin + place.size]


def _mapped(name: str, key: str, end: int) -> mmap.mmap:
    path = os.path.join(_SHARED_MEMORY, key.lstrip("/"))  # noqa: PTH118  a name that was checked, not a path
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        why = error.strerror or str(error)
        raise InferError(f"region {shown(name)}: cannot open shared memory {shown(key)}: {why}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size < end:
            raise InferError(f"region {shown(name)} ends at byte {end}, {shown(key)} has {found.st_size}")
        return mmap.mmap(descriptor, found.st_size)
    except (OSError, ValueError) as error:
        raise InferError(f"region {shown(name)}: cannot map shared memory {shown(key)}: {error}") from None
    finally:
        os.close(descriptor)
