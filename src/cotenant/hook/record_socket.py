"""Receive the records of a program's processes: sealed memory files that only the hook of their process can write.

A file in a directory could be truncated by another process of the same user, which would end the process that has it
mapped with SIGBUS. Therefore the hook sends the descriptor of its memory file to a socket (native/hook/entry/
record_socket.c), and this process keeps it. A link in the directory lets other commands open the record by its path.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cotenant.hook.records import is_sealed_record, reader

if TYPE_CHECKING:
    from cotenant.hook.record import Record

RECORDS_LIMIT: Final = 1024
"""Records that are kept; further ones are dropped."""
_PENDING_LIMIT: Final = 64
_SOCKET_NAME: Final = "records.sock"
_LENGTH: Final = struct.Struct("<I")
_NAME: Final = re.compile(rb"record-[1-9][0-9]{0,9}")
_FRAME_LIMIT: Final = 64


class RecordSocket:
    """The socket in a record directory, and the records that arrived."""

    def __init__(self, directory: Path) -> None:
        """Listen in this directory."""
        self._directory = directory
        self._pending: list[socket.socket] = []
        self._descriptors: dict[str, int] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = RECORDS_LIMIT * 4 if files == resource.RLIM_INFINITY else files
        # The other descriptors stay free for everything else.
        self._limit, self._pending_limit = min(RECORDS_LIMIT, files // 2), min(_PENDING_LIMIT, files // 4)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._bind()
            self._listener.listen(RECORDS_LIMIT)
        except BaseException:
            self._listener.close()
            raise

    def _bind(self) -> None:
        """Create the socket in the directory; without /proc no process can reach it, and records stay in processes."""
        opened = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The address of a socket is shorter than the path of a directory may be.
            self._listener.bind(f"/proc/self/fd/{opened}/{_SOCKET_NAME}")
            (self._directory / _SOCKET_NAME).chmod(0o600)
        except FileNotFoundError:
            self._listener.bind("")  # an address that nobody else knows
        finally:
            os.close(opened)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a process connects."""
        return self._listener.fileno()

    def close(self) -> None:
        """Close the socket and the records."""
        for connection in (self._listener, *self._pending):
            connection.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._pending.clear()
        self._descriptors.clear()

    def receive(self) -> None:
        """Take all records that have arrived."""
        for _ in range(RECORDS_LIMIT):  # others can connect without end
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            connection.setblocking(False)
            self._pending.append(connection)
            if len(self._pending) > self._pending_limit:
                self._take_pending()
                for oldest in self._pending[: -self._pending_limit]:
                    oldest.close()
                del self._pending[: -self._pending_limit]
        self._take_pending()

    def _take_pending(self) -> None:
        self._pending = [connection for connection in self._pending if not self._is_done(connection)]

    def _is_done(self, connection: socket.socket) -> bool:
        """Take the record of a connection and close it; False if nothing has arrived yet."""
        descriptors: list[int] = []
        try:
            frame, descriptors, _, _ = socket.recv_fds(connection, _FRAME_LIMIT, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            frame = b""
        connection.close()
        for descriptor in descriptors:
            if not self._keep(frame, descriptor):
                os.close(descriptor)
        return True

    def _keep(self, frame: bytes, descriptor: int) -> bool:
        text = frame[_LENGTH.size :]
        is_named = frame[: _LENGTH.size] == _LENGTH.pack(len(text)) and _NAME.fullmatch(text) is not None
        if not is_named or len(self._descriptors) >= self._limit or not is_sealed_record(descriptor):
            return False
        # A process number can occur again: in another namespace, or after the process has executed another program.
        names = (f"{text.decode()}-{number}" for number in range(RECORDS_LIMIT))
        name = next(name for name in names if name not in self._descriptors)
        self._descriptors[name] = descriptor
        with contextlib.suppress(OSError):  # only other commands need the link
            (self._directory / name).symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
        return True

    def has_record(self, pid: int) -> bool:
        """Return whether a record of this process arrived; the number is that of its own pid namespace."""
        self.receive()
        return any(name.startswith(f"record-{pid}-") for name in self._descriptors)

    def read(self, task: str) -> Iterator[Record]:
        """Yield every record in the order of names, whatever became of the links."""
        from cotenant.hook.record import decode_record  # noqa: PLC0415  slow to import; before the program, it is not needed

        self.receive()
        for _, descriptor in sorted(self._descriptors.items()):
            record = decode_record(reader(descriptor), task)
            if record is not None:
                yield record
