"""A node that only attaches processes, by the protocol of docs/reference/wire.md, for tests of the hook."""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import msgspec

from cotenant.gate import tenant_table
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.process_pages import PROCESS_BYTES, ProcessLedger, read_gate_page, read_ledger_page
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry
from cotenant.gate.shared_pages import ArbitrationPage, SealedPage

LIMIT_S: Final = 60.0
"""Against hangs alone."""
VERSION: Final = 1
ONE_TENANT: Final = Grant(3, 17, Kind.OFFLINE, 7, 0, 0, 0, 0)
SIZE_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
ALL_SEALS: Final = SIZE_SEALS | 0x10  # F_SEAL_FUTURE_WRITE, which the module of Python 3.11 lacks
_LENGTH: Final = struct.Struct("<I")
Message: TypeAlias = dict[str, Any]


class SealedMemory:
    """A memory file with any seals, which this process has mapped for writing."""

    def __init__(self, size: int, seals: int = ALL_SEALS) -> None:
        self.descriptor = os.memfd_create("fake-node", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        self.memory.close()
        os.close(self.descriptor)


class NodePages:
    """The pages of one device: its tenant table, and a grant and an account for each slot. By default one tenant."""

    def __init__(self, grants: Sequence[Grant] = (ONE_TENANT,)) -> None:
        self.grants = LiveGrantPages()
        self.ledgers = LiveLedgers(self.grants)
        self._table = SealedPage.create("table", tenant_table.TABLE_BYTES)
        self._arbitration = ArbitrationPage.create("arbitration")
        self._grant_descriptors = {grant.slot: os.dup(self.grants.publish(grant, 0)) for grant in grants}
        self.generations = {grant.slot: grant.generation for grant in grants}
        for grant in grants:
            self.ledgers.grant(0, grant.slot, grant.generation)
        self._processes: Sequence[tuple[int, int, int]] = ()
        tenant_table.format_tenant_table(memoryview(self._table.memory))
        entries = tuple(GateEntry(grant.slot, grant.generation, grant.priority, online=False) for grant in grants)
        self.rules = GateRules(GatePolicy.OPEN, entries=entries)

    def write_quota(self, memory_bytes: int) -> None:
        """Change the quota of the only tenant."""
        self.grants.publish(msgspec.structs.replace(ONE_TENANT, memory_bytes=memory_bytes), 0)

    def write_rules(self, rules: GateRules) -> None:
        self.rules = rules
        self.write_processes(self._processes)

    def write_processes(self, processes: Sequence[tuple[int, int, int]]) -> None:
        """List these processes, by index, generation and slot, as far as the rules have an entry for their tenant."""
        self._processes = processes
        entries = {entry.slot: entry for entry in self.rules.entries}
        listed = [
            ProcessEntry(index, generation, slot, entries[slot])
            for index, generation, slot in processes
            if slot in entries
        ]
        tenant_table.write_tenant_table(memoryview(self._table.memory), self.rules, listed)

    def descriptors(self, slot: int) -> list[int]:
        return [self._grant_descriptors[slot], self._table.descriptor, self._arbitration.descriptor]

    def close(self) -> None:
        self.grants.close()
        self._table.close()
        self._arbitration.close()
        for descriptor in self._grant_descriptors.values():
            os.close(descriptor)


class Connection:
    """One connection of a hook, and what it has sent."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid = int(struct.unpack("3i", credentials)[0])
        self.request: Message = {}
        self.index, self.generation, self.slot = -1, 0, -1
        self.descriptor = -1
        self.pages: mmap.mmap | None = None
        self.is_closed = False

    def receive(self) -> bytes:
        """Return the next frame, and keep a descriptor that comes with it; empty at the end."""
        length = self._receive(_LENGTH.size)
        return self._receive(_LENGTH.unpack(length)[0]) if length else b""

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part, ancillary, _, _ = self.peer.recvmsg(size - len(data), socket.CMSG_SPACE(16))
            for _, kind, rights in ancillary:
                assert kind == socket.SCM_RIGHTS
                [self.descriptor] = array.array("i", rights)
            if not part:
                return b""
            data += part
        return data

    def send(self, message: Message, descriptors: list[int] | None = None) -> None:
        payload = msgspec.msgpack.encode(message)
        self.send_bytes(_LENGTH.pack(len(payload)) + payload, descriptors)

    def send_bytes(self, data: bytes, descriptors: list[int] | None = None) -> None:
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self.peer, [data], descriptors or [])

    def words(self) -> dict[str, int | list[int]]:
        """Return the words of the process's gate page."""
        assert self.pages is not None
        return read_gate_page(bytes(self.pages))

    def ledger(self) -> ProcessLedger:
        """Return the ledger page of the process."""
        assert self.pages is not None
        return read_ledger_page(bytes(self.pages))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)
        self.peer.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


Answer: TypeAlias = "Callable[[FakeNode, Connection], None]"


def attach(node: FakeNode, connection: Connection) -> None:
    """Answer as a node does: pass the pages on, list the process, then answer."""
    node.add(connection)
    node.send_attached(connection)


class FakeNode:
    """Listens on a socket and answers each request with a function."""

    def __init__(
        self,
        path: Path,
        pages: NodePages,
        answer: Answer = attach,
        *,
        environment: dict[str, str] | None = None,
        first_index: int = 0,
    ) -> None:
        self.path, self.pages, self.environment = path, pages, environment or {}
        self._answer, self._first_index = answer, first_index
        self._generations, self.epoch = 100 + 10 * first_index, 0
        self.connections: list[Connection] = []
        self.attached: list[Connection] = []
        self.changed, self._is_closed = threading.Condition(), False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End, as a node that is killed: all connections close, and the pages keep their contents."""
        if self._is_closed:
            return
        self._is_closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(LIMIT_S)
        for connection in self.connections:
            connection.close()
        for thread in self._threads:
            thread.join(LIMIT_S)
        self.path.unlink()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(peer)
            self.connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while payload := connection.receive():
                connection.request = msgspec.msgpack.decode(payload)
                with self.changed:
                    self._answer(self, connection)
                    self.changed.notify_all()
        with self.changed:
            connection.is_closed = True
            connection.close()
            if connection in self.attached and not self._is_closed:
                self.attached.remove(connection)
                assert connection.pages is not None
                self.pages.ledgers.end(0, connection.index, bytes(connection.pages))
                self._write_table()
            self.changed.notify_all()

    def _write_table(self) -> None:
        self.pages.write_processes([(other.index, other.generation, other.slot) for other in self.attached])

    def add(self, connection: Connection) -> None:
        """Map the pages of a process, pass them on to the others, and list it; its token is the slot of its tenant."""
        connection.pages = mmap.mmap(connection.descriptor, PROCESS_BYTES, prot=mmap.PROT_READ)
        token = connection.request["token"]
        connection.slot = int(token) if token.isdigit() else ONE_TENANT.slot
        self.epoch += 1
        if connection.request["index"] >= 0:
            connection.index, connection.generation = connection.request["index"], connection.request["generation"]
        else:
            self._generations += 1
            used = {other.index for other in self.attached}
            connection.index = next(index for index in itertools.count(self._first_index) if index not in used)
            connection.generation = self._generations
        for other in self.attached:
            self.send_page(other, connection.index, connection.generation, connection.descriptor)
        self.attached.append(connection)
        tenant = connection.slot, self.pages.generations[connection.slot]
        self.pages.ledgers.begin(0, connection.index, connection.generation, tenant, connection.pid)
        self._write_table()

    def send_page(self, to: Connection, index: int, generation: int, descriptor: int) -> None:
        to.send({"type": "page", "index": index, "generation": generation, "epoch": self.epoch}, [descriptor])

    def send_attached(self, connection: Connection, *, has_device: bool = True, **changes: object) -> None:
        answer = {
            "type": "attached",
            "version": VERSION,
            "slot": connection.slot,
            "generation": self.pages.generations[connection.slot],
            "gpu": 0,
            "index": connection.index,
            "process_generation": connection.generation,
            "epoch": self.epoch,
            "environment": self.environment,
        }
        descriptors = self.pages.descriptors(connection.slot)
        connection.send({**answer, **changes}, descriptors if has_device else descriptors[:1])
        for other in self.attached:
            if other is not connection and has_device:
                self.send_page(connection, other.index, other.generation, other.descriptor)

    def processes(self, slot: int) -> list[Connection]:
        """Return the processes of a tenant, also those that have ended."""
        return [connection for connection in self.connections if connection.slot == slot]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that this node receives, or a page that a process writes, fulfils the condition."""
        with self.changed:
            for _ in range(int(LIMIT_S / 0.02)):
                if condition():
                    return
                self.changed.wait(0.02)
        raise AssertionError("the condition was not fulfilled in time")

    def until_attached(self, count: int) -> list[Connection]:
        """Wait until this many processes are attached, and return them."""
        self.until(lambda: len(self.attached) == count)
        return list(self.attached)
