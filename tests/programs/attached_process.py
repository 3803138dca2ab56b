"""Attach to the node as the hook does, and answer the commands of a test, line by line: attached_process.py NAME.

attach: attach to the node, anew with the same pages if it did before; answers with its place, or null without a node.
look: answers with the tenant table and the digests of all pages that this process can see, also without a node.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import sys
from typing import Any

import msgspec

from cotenant.gate import tenant_table
from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.shared_pages import SealedPage, check_process_pages
from cotenant.node import wire

NAME = sys.argv[1]
BOUND_S = 60.0


class Attached:
    """The pages of this process, and what the node passed to it."""

    def __init__(self) -> None:
        self._own = SealedPage.create("cotenant-process", PROCESS_BYTES)
        self._own.memory[:] = (NAME.encode() * PROCESS_BYTES)[:PROCESS_BYTES]
        self._place: wire.AttachAnswer | None = None
        self._table: mmap.mmap | None = None
        self._others: dict[int, tuple[int, mmap.mmap]] = {}  # by index: the generation and the pages
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(BOUND_S)
        self._frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)

    def attach(self) -> dict[str, int] | None:
        """Attach, and return this process's place."""
        self._socket.close()
        self._connect()
        previous = (-1, 0) if self._place is None else (self._place.index, self._place.process_generation)
        request = wire.Attach(wire.HOOK_VERSION, {}, "", os.environ["COTENANT_TOKEN"], "", "", *previous)
        try:
            self._socket.connect(os.environ["COTENANT_SOCKET"])
            socket.send_fds(self._socket, [wire.encode(request)], [self._own.descriptor])
            self._receive()
            while self._table is None:
                self._receive()
        except OSError:  # no node, or it dies meanwhile
            return None
        assert self._place is not None
        return {name: getattr(self._place, name) for name in ("gpu", "slot", "index", "process_generation")}

    def _receive(self) -> None:
        """Read one message or several, and map the pages whose descriptors came with it."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 3)
        if not data:
            raise ConnectionResetError
        for frame in self._frames.feed(data):
            match wire.decode_answer(frame):
                case wire.AttachAnswer() as answer:
                    self._place, self._others = answer, {}
                    self._table = mmap.mmap(descriptors[1], tenant_table.TABLE_BYTES, prot=mmap.PROT_READ)
                case wire.Page(index=index, generation=generation):
                    self._others[index] = generation, check_process_pages(descriptors[0])
                case other:
                    raise AssertionError(f"the node sent {other}")
        for descriptor in descriptors:
            os.close(descriptor)

    def look(self) -> dict[str, Any]:
        """Return what this process can see."""
        assert self._table is not None
        # The node sends the pages of a process before it lists it: the pages of all that are listed have arrived.
        table = self._table[:]
        self._socket.setblocking(False)
        try:
            while True:
                self._receive()
        except OSError:  # nothing more has arrived, or the node has died
            self._socket.settimeout(BOUND_S)
        assert self._place is not None
        own = (self._place.process_generation, self._own.memory)
        pages = {**self._others, self._place.index: own}
        return {
            "rules": tenant_table.read_tenant_table(table),
            "processes": tenant_table.read_processes(table),
            "pages": {index: [page[0], hashlib.sha256(page[1][:]).hexdigest()] for index, page in pages.items()},
        }


attached = Attached()
for line in sys.stdin:
    answer = {"attach": attached.attach, "look": attached.look}[line.strip()]()
    print(msgspec.json.encode(answer).decode(), flush=True)
