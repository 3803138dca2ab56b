"""Attaches processes to a registry through a socket, without a node: the token of a process is its tenant's slot."""

from __future__ import annotations

import contextlib
import functools
import socket
from pathlib import Path
from typing import Any

from cotenant.node import wire
from cotenant.node.daemon.processes import LiveProcesses
from cotenant.node.model.admission import Reject
from cotenant.node.peer import identify
from cotenant.node.ports import ProcessPage, TenantKey
from cotenant.runner.live_loop import READ, LiveLoop

_READ_BYTES = 1 << 16


class AttachServer:
    """Serves `attach` in an event loop, and pushes the pages of other processes."""

    def __init__(self, loop: LiveLoop[Any], path: Path, processes: LiveProcesses, generation: int) -> None:
        self._loop = loop
        self._processes = processes
        self._generation = generation
        self._peers: dict[socket.socket, tuple[int, int] | None] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._socket.listen(64)
        processes.listen(self)
        loop.watch(self._socket.fileno(), READ, self._accept)

    def page_added(self, page: ProcessPage) -> None:
        for connection, attached in self._peers.items():
            if attached is not None and attached[0] != page.index:
                self._push(connection, page)

    def last_process_left(self, tenant: TenantKey) -> None:
        """Do nothing: the test decides which tenants there are."""

    def close(self) -> None:
        for connection in [*self._peers, self._socket]:
            self._loop.forget(connection.fileno())
            connection.close()

    def _accept(self, mask: int) -> None:
        del mask
        connection, _ = self._socket.accept()
        self._peers[connection] = None
        self._loop.watch(connection.fileno(), READ, functools.partial(self._ready, connection))

    def _ready(self, connection: socket.socket, mask: int) -> None:
        del mask
        data, descriptors, _, _ = socket.recv_fds(connection, _READ_BYTES, 1)
        attached = self._peers[connection]
        if not data:
            self._loop.forget(connection.fileno())
            connection.close()
            del self._peers[connection]
            if attached is not None:
                self._processes.disconnect(0, *attached)
            return
        [payload] = wire.Frames().feed(data)
        request = wire.decode_request(payload)
        assert isinstance(request, wire.Attach)
        previous = None if request.index < 0 else (request.index, request.generation)
        peer = identify(connection)
        tenant = int(request.token), self._generation
        result = self._processes.attach(0, tenant, peer, descriptors[0], previous)
        assert not isinstance(result, Reject)
        self._peers[connection] = result.index, result.generation
        places = (result.index, result.generation, result.epoch)
        answer = wire.AttachAnswer(wire.HOOK_VERSION, *tenant, 0, *places, {})
        socket.send_fds(connection, [wire.encode(answer)], list(result.descriptors))
        for page in self._processes.pages(0):
            if page.index != result.index:
                self._push(connection, page)

    def _push(self, connection: socket.socket, page: ProcessPage) -> None:
        message = wire.encode(wire.Page(page.index, page.generation, page.epoch))
        with contextlib.suppress(OSError):
            socket.send_fds(connection, [message], [page.descriptor])
