"""Shared memory between the node and processes: memory files that only their creator can write.

A descriptor can be reopened for writing through /proc by any process of the same user, whatever its mode says.
Therefore the writer maps the memory first and then seals the file: from then on no descriptor can be mapped for
writing, written or resized, and the seals cannot be removed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final, Self

from cotenant.errors import PeerError
from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.tenant_table import PAGE_BYTES

_F_SEAL_FUTURE_WRITE: Final = 0x0010  # not in the module fcntl of Python 3.11
_FIXED_SIZE: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
ONE_WRITER: Final = _FIXED_SIZE | _F_SEAL_FUTURE_WRITE
"""The seals of memory that only the mapping of its creator can write."""


class SealedPage:
    """Memory that this process writes through `memory`, and that holders of `descriptor` can only read."""

    _seals = ONE_WRITER

    def __init__(self, memory: mmap.mmap, descriptor: int) -> None:
        """Own the mapping and the descriptor of a sealed memory file; `create` makes one."""
        self.memory = memory
        self.descriptor = descriptor

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Self:
        """Create zeroed memory of this size; the name is shown in /proc."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size_bytes)
            memory = mmap.mmap(descriptor, size_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, cls._seals)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(memory, descriptor)

    def close(self) -> None:
        """Unmap the memory and close the descriptor; other processes keep what they have mapped."""
        self.memory.close()
        os.close(self.descriptor)


class ArbitrationPage(SealedPage):
    """The page that all waiting processes of a device write: anyone may map it for writing, and none may resize it."""

    _seals = _FIXED_SIZE

    @classmethod
    def create(cls, name: str, size_bytes: int = PAGE_BYTES) -> Self:
        """Create a zeroed arbitration page."""
        return super().create(name, size_bytes)


def check_process_pages(descriptor: int) -> mmap.mmap:
    """Return the pages of another process, mapped for reading; raise `PeerError` if they could change size or writer.

    A mapping of a file that another process can shrink would end this process with SIGBUS.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise PeerError("process pages must be a memory file that can be sealed; this descriptor is not") from None
    if seals & ONE_WRITER != ONE_WRITER:
        raise PeerError(
            f"process pages must be sealed against resizing and further writers; the seals are {seals:#x} and must "
            f"include {ONE_WRITER:#x}"
        )
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes != PROCESS_BYTES:
        raise PeerError(f"process pages must have {PROCESS_BYTES} bytes; these have {size_bytes}")
    try:
        return mmap.mmap(descriptor, PROCESS_BYTES, prot=mmap.PROT_READ)
    except OSError as error:
        raise PeerError(f"process pages cannot be mapped for reading: {error}") from None
