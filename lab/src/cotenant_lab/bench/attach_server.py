"""A minimal node for benches of the hook: it attaches processes to tenants with fixed rules, and reads their pages.

A process that has ended stays in the tenant table, so that the process under test keeps its neighbour.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cotenant.errors import PeerError
from cotenant.gate.grant import Grant
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.process_pages import ProcessLedger, read_gate_page, read_ledger_page
from cotenant.gate.rules import GateRules
from cotenant.gate.shared_pages import check_process_pages
from cotenant.node import wire

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True)
class _Process:
    """An attached process."""

    index: int
    slot: int
    descriptor: int
    pages: mmap.mmap
    connection: socket.socket


class AttachServer:
    """Listens in a directory of its own; the token of a process is the slot of its tenant."""

    def __init__(self, grants: Sequence[Grant], rules: GateRules) -> None:
        """Serve one device with these tenants in a thread."""
        self._grants = {grant.slot: grant for grant in grants}
        self._pages, self._tables = LiveGrantPages(), LiveTenantTables()
        for grant in grants:
            self._pages.publish(grant, len(grants) - 1)
        self._tables.set_table(0, rules)
        self._processes: list[_Process] = []
        self._lock = threading.Lock()
        self._home = Path(tempfile.mkdtemp(prefix="cotenant-"))  # short enough for the path of a socket
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._home / "tenant.sock"))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def variables(self, slot: int) -> dict[str, str]:
        """Return the variables with which a program becomes a process of the tenant in a slot."""
        return {"COTENANT_SOCKET": str(self._home / "tenant.sock"), "COTENANT_TOKEN": str(slot)}

    def page(self, slot: int) -> dict[str, int | list[int]]:
        """Return the gate page of the latest process of a tenant; empty if it had none."""
        process = self._latest(slot)
        return {} if process is None else read_gate_page(process.pages[:])

    def ledger(self, slot: int) -> ProcessLedger | None:
        """Return the ledger page of the latest process of a tenant; None if it had none."""
        process = self._latest(slot)
        return None if process is None else read_ledger_page(process.pages[:])

    def close(self) -> None:
        """End the thread and remove the socket; processes that still run keep the last rules."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for process in self._processes:
            process.connection.close()
            process.pages.close()
            os.close(process.descriptor)
        self._pages.close()
        self._tables.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _latest(self, slot: int) -> _Process | None:
        with self._lock:
            return next((process for process in reversed(self._processes) if process.slot == slot), None)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with contextlib.suppress(OSError, PeerError):
                self._attach(connection)

    def _attach(self, connection: socket.socket) -> None:
        data, descriptors, _, _ = socket.recv_fds(connection, wire.FRAME_LIMIT_BYTES, 1)
        request = wire.decode_request(data[_LENGTH.size :])
        if not isinstance(request, wire.Attach) or len(descriptors) != 1:
            raise PeerError("this server only attaches processes")
        slot, grant = int(request.token), self._grants[int(request.token)]
        with self._lock:
            epoch = len(self._processes) + 1
            process = _Process(epoch - 1, slot, descriptors[0], check_process_pages(descriptors[0]), connection)
            for other in self._processes:
                with contextlib.suppress(OSError):  # it has ended
                    _send_page(other.connection, process, epoch)
            self._tables.attach(0, process.index, epoch, slot)
            answer = wire.AttachAnswer(wire.HOOK_VERSION, slot, grant.generation, 0, process.index, epoch, epoch, {})
            handles = [self._pages.handle(slot, 0), *self._tables.handles(0)]
            socket.send_fds(connection, [wire.encode(answer)], handles)
            for other in self._processes:
                _send_page(connection, other, epoch)
            self._processes.append(process)


def _send_page(connection: socket.socket, process: _Process, epoch: int) -> None:
    message = wire.Page(process.index, process.index + 1, epoch)
    socket.send_fds(connection, [wire.encode(message)], [process.descriptor])
