"""A node whose disk can fail at any byte: the real host, journal and state machine, with recorded effects."""

import errno
import os
from pathlib import Path
from typing import Any

from cotenant.node.daemon.guarded_host import GuardedHost, HostGuards
from cotenant.node.daemon.request_limit import DroppedRequests, RequestLimiter
from cotenant.node.host import NodeEffects, NodePorts
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.action import Action, IssueGrant
from cotenant.node.model.admission import Reject
from cotenant.node.model.event import Event, NodeRestored
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import Effects, replay
from cotenant.runner.journal_file import FileJournal, Recovery

OWN_UID = 1000


class Disk:
    """What the disk accepts: everything, or this many bytes until it is repaired."""

    def __init__(self) -> None:
        self.error = 0
        self.remaining_bytes = 0

    def fail(self, error: int, remaining_bytes: int) -> None:
        self.error, self.remaining_bytes = error, remaining_bytes

    def repair(self) -> None:
        self.error = 0

    def write(self, file: int, data: bytes) -> None:
        """Write all bytes, or some of them before it raises."""
        if not self.error:
            os.write(file, data)
            return
        part = data[: self.remaining_bytes]
        self.remaining_bytes -= len(part)
        os.write(file, part)
        if len(part) < len(data):
            raise OSError(self.error, os.strerror(self.error))

    def try_to_write(self, directory: Path) -> None:
        del directory
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


class JournalOnDisk(FileJournal):
    """A journal on such a disk."""

    def __init__(self, path: Path, limit_bytes: int, disk: Disk) -> None:
        self.disk = disk
        super().__init__(path, limit_bytes)

    def _write_all(self, file: int, data: bytes) -> None:
        self.disk.write(file, data)


class NodeOnDisk:
    """A node in a directory; a new object is the node after a restart."""

    def __init__(self, directory: Path, disk: Disk, limit_bytes: int = 1 << 30) -> None:
        self.directory = directory
        self.path = directory / "journal"
        self.machine = NodeMachine()
        recovery = Recovery(self.path, NodeJournalReader)
        replay(self.machine, recovery.turns())
        recovery.truncate_torn_tail()
        self.journal = JournalOnDisk(self.path, limit_bytes, disk)
        self.now = recovery.last_instant
        self.queue: list[Event] = []
        self.refusals: list[tuple[int, Reject]] = []
        self.carried_out: list[Action] = []
        self.other_problem = ""
        self.dropped = DroppedRequests(self.queue.append)
        guards = HostGuards(
            lambda peer, reject: self.refusals.append((peer, reject)),
            lambda: self.other_problem,
            self.queue.append,
            RequestLimiter(OWN_UID),
            self.dropped,
            disk.try_to_write,
        )
        self.host = GuardedHost(self.machine, self._effects(), self.journal, directory, None, guards)

    def _effects(self) -> Effects:
        ports: Any = [None] * len(NodePorts._fields)
        kinds = NodeEffects(NodePorts(*ports), lambda _: None).effects()
        return dict.fromkeys(kinds, self._carry_out)

    def _carry_out(self, action: Action) -> None:
        """Record an effect; a grant must be in the journal before its tenant learns of it."""
        if isinstance(action, IssueGrant) and self.journal.is_present:
            assert action.grant in [tenant.grant for _, tenant in self.replayed().tenants]
        self.carried_out.append(action)

    def tell(self, event: Event, step_ns: int = 1) -> None:
        """Deliver an event and what it causes, as the loop does."""
        self.now += step_ns
        self.queue.append(event)
        while self.queue:
            self.host.turn(self.queue.pop(0), self.now)

    def probe(self) -> None:
        """Let a second pass, after which the host tries to write again."""
        self.now += 10**9
        self.host.wake(self.now)
        while self.queue:
            self.host.turn(self.queue.pop(0), self.now)

    def replayed(self) -> NodeRestored:
        """Return the state that a restarted node would have."""
        machine = NodeMachine()
        recovery = Recovery(self.path, NodeJournalReader)
        replay(machine, recovery.turns())
        assert not recovery.damage
        return machine.snapshot()

    def close(self) -> None:
        self.journal.close()


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
