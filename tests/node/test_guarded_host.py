"""A journal that cannot be written costs no tenant and no turn: what the node cannot record does not take effect."""

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cotenant.gate.grant import Kind
from cotenant.node.daemon.guarded_host import PendingTurns
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.action import IssueGrant, Revoke, SignalTenant
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    NodeReported,
    NodeSettings,
    NodeStarted,
    PeerLost,
    PriorityChanged,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TenantsPaused,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.log_event import LogEventKind
from cotenant.node.model.tenant import TenantSpec
from cotenant.runner.journal_file import FileJournal
from tests.support.effort import examples
from tests.support.failing_disk import DISK_ERRORS, OWN_UID, Disk, NodeOnDisk

SETTINGS = NodeSettings(4, 10**9, gpus=(Gpu("a", 100), Gpu("b", 100)))
JOB = TenantSpec(Kind.OFFLINE, 7, "")
STARTED = NodeStarted(SETTINGS, "test", 0)


def started(directory: Path, limit_bytes: int = 1 << 30) -> tuple[NodeOnDisk, Disk]:
    disk = Disk()
    node = NodeOnDisk(directory, disk, limit_bytes)
    node.tell(STARTED)
    return node, disk


def join(peer: int, spec: TenantSpec = JOB) -> TenantJoined:
    return TenantJoined(peer, 100 + peer, OWN_UID, spec)


@pytest.mark.parametrize("error", DISK_ERRORS)
@pytest.mark.parametrize("remaining_bytes", [0, 1, 20, 100])
def test_failed_join_is_undone_and_refused(tmp_path: Path, error: int, remaining_bytes: int) -> None:
    node, disk = started(tmp_path)
    node.tell(join(1))
    before, size = node.machine.snapshot(), node.path.stat().st_size
    disk.fail(error, remaining_bytes)
    node.tell(join(2))
    [(peer, reject)] = node.refusals
    assert (peer, reject.reason) == (2, Reason.NOT_WRITABLE)
    assert "cannot be written" in reject.detail
    assert reject.retry_after_ns > 0
    assert node.machine.snapshot().tenants == before.tenants
    assert node.path.stat().st_size == size, "nothing of the turn is in the journal"
    assert node.replayed() == before
    disk.repair()
    node.probe()
    assert not node.host.problem
    node.tell(join(3))
    assert [tenant.pid for _, tenant in node.replayed().tenants] == [101, 103]
    assert node.replayed() == node.machine.snapshot()
    node.close()


def test_tenants_end_while_the_disk_is_full(tmp_path: Path) -> None:
    node, disk = started(tmp_path)
    for peer in (1, 2, 3):
        node.tell(join(peer))
    names = [view.tenant.name for view in node.machine.tenants()]
    disk.fail(errno.ENOSPC, 0)
    node.tell(TenantLeft(1, "exit 0"))
    node.tell(PeerLost(2))
    node.tell(EvictionRequested(9, OWN_UID, True, (names[2],)))
    revoked = [action.slot for action in node.carried_out if isinstance(action, Revoke)]
    assert revoked == [0, 1]
    node.now += 10**12
    node.tell(TimerFired())
    assert any(isinstance(action, SignalTenant) for action in node.carried_out)
    assert len(node.replayed().tenants) == 3, "a restarted node would wait for all three"
    disk.repair()
    node.probe()
    assert node.host.kept_turns == 0
    assert node.replayed() == node.machine.snapshot()
    with node.path.open("rb") as file:
        events = [turn.event for turn in NodeJournalReader(file.read)]
    assert TenantLeft(1, "exit 0") in events
    kinds = [event.what for event in events if isinstance(event, NodeReported)]
    assert kinds == [LogEventKind.JOURNAL_FAILED, LogEventKind.JOURNAL_RESTORED]
    node.close()


@pytest.mark.parametrize(
    "command",
    [
        TenantsPaused(9, OWN_UID, True, ("job-0",), False, True),
        PriorityChanged(9, OWN_UID, True, "job-0", 1),
    ],
)
def test_commands_are_refused_while_the_disk_is_full(tmp_path: Path, command: Event) -> None:
    node, disk = started(tmp_path)
    node.tell(join(1, TenantSpec(Kind.OFFLINE, 7, "job-0")))
    before = node.machine.snapshot().tenants
    disk.fail(errno.ENOSPC, 0)
    node.tell(command)
    node.tell(command)
    assert [reject.reason for _, reject in node.refusals] == [Reason.NOT_WRITABLE] * 2
    assert node.machine.snapshot().tenants == before
    disk.repair()
    node.probe()
    node.tell(command)
    assert node.machine.snapshot().tenants != before
    node.close()


def test_waiting_join_is_not_admitted_while_the_disk_is_full(tmp_path: Path) -> None:
    node, disk = started(tmp_path)
    for peer in (1, 2):
        node.tell(join(peer, TenantSpec(Kind.OFFLINE, 7, memory_bytes=100)))
    node.tell(join(3, TenantSpec(Kind.ONLINE, 2, memory_bytes=100)))
    assert node.machine.waiting_peers() == [3]
    disk.fail(errno.ENOSPC, 0)
    node.tell(PeerLost(1))
    assert node.machine.waiting_peers() == []
    assert [peer for peer, _ in node.refusals] == [3]
    assert [view.tenant.pid for view in node.machine.tenants()] == [102]
    assert not any(isinstance(action, IssueGrant) and action.peer == 3 for action in node.carried_out)
    disk.repair()
    node.probe()
    assert node.replayed() == node.machine.snapshot()
    node.close()


def test_disconnected_tenant_resumes_while_the_disk_is_full(tmp_path: Path) -> None:
    node, disk = started(tmp_path)
    node.tell(join(1))
    node.close()
    node = NodeOnDisk(tmp_path, disk)
    node.tell(STARTED)
    disk.fail(errno.EROFS, 0)
    node.tell(TimerFired())
    node.tell(TenantResumed(7, 101, OWN_UID, 0, 1))
    assert [view.connected for view in node.machine.tenants()] == [True]
    disk.repair()
    node.probe()
    assert node.replayed() == node.machine.snapshot()
    node.close()


def test_memory_for_kept_turns_is_bounded(tmp_path: Path) -> None:
    node, disk = started(tmp_path)
    node.host._pending = PendingTurns(2000)
    node.tell(join(1))
    disk.fail(errno.ENOSPC, 0)
    for _ in range(500):
        node.tell(NodeReported(LogEventKind.FILES_LOST, "text " * 10))
    assert 0 < node.host.kept_turns < 40
    disk.repair()
    node.probe()
    assert node.replayed() == node.machine.snapshot()
    assert node.path.with_name("journal.1").exists(), "a snapshot begins a new segment"
    node.close()


@pytest.mark.parametrize("what", ["file", "directory"])
def test_deleted_journal_is_noticed_by_the_next_join(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    node, _ = started(directory)
    node.tell(join(1))
    if what == "file":
        node.path.unlink()
    else:
        shutil.rmtree(directory)
    node.tell(join(2))
    [(peer, reject)] = node.refusals
    assert (peer, reject.reason) == (2, Reason.NOT_WRITABLE)
    assert "deleted" in reject.detail
    if what == "directory":
        node.probe()
        assert node.host.problem, "there is no directory to write to"
        directory.mkdir()
    node.probe()
    assert not node.host.problem
    assert node.replayed() == node.machine.snapshot()
    node.tell(join(3))
    assert len(node.machine.tenants()) == 2
    assert node.replayed() == node.machine.snapshot()
    node.close()


def test_join_is_refused_while_the_directories_cannot_be_used(tmp_path: Path) -> None:
    node, _ = started(tmp_path)
    node.other_problem = "the runtime directory /x was deleted or replaced"
    node.tell(join(1))
    assert [reject.detail for _, reject in node.refusals] == [
        "the node cannot record it now: the runtime directory /x was deleted or replaced; running tenants continue"
    ]
    node.other_problem = ""
    node.tell(join(1))
    assert len(node.machine.tenants()) == 1
    node.close()


def test_segment_that_cannot_be_begun_leaves_the_present_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = started(tmp_path, limit_bytes=300)
    monkeypatch.setattr(FileJournal, "_exchange", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk")))
    for peer in range(1, 5):
        node.tell(join(peer))
        node.tell(TenantLeft(peer, "exit 0"))
    assert not node.host.problem
    assert not node.path.with_name("journal.new").exists()
    assert node.replayed() == node.machine.snapshot()
    monkeypatch.undo()
    node.now += 10**12
    node.tell(join(9))
    assert node.path.with_name("journal.1").exists()
    assert node.replayed() == node.machine.snapshot()
    node.close()


class FailingDisk(RuleBasedStateMachine):
    """Any sequence of requests, failures, repairs and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="ct-disk-"))
        self.disk = Disk()
        self.node = NodeOnDisk(self.home, self.disk, 2000)
        self.peer = 0
        self.node.tell(STARTED)

    def teardown(self) -> None:
        self.node.close()
        shutil.rmtree(self.home)

    @rule(online=st.booleans(), memory_bytes=st.sampled_from([0, 60, 100]))
    def join(self, online: bool, memory_bytes: int) -> None:
        self.peer += 1
        self.node.tell(
            join(self.peer, TenantSpec(Kind.ONLINE if online else Kind.OFFLINE, 5, memory_bytes=memory_bytes))
        )

    @precondition(lambda self: self.peers())
    @rule(pick=st.integers(0, 9), lost=st.booleans())
    def end(self, pick: int, lost: bool) -> None:
        peer = self.peers()[pick % len(self.peers())]
        self.node.tell(PeerLost(peer) if lost else TenantLeft(peer, "exit 0"))

    @precondition(lambda self: self.node.machine.tenants())
    @rule(pick=st.integers(0, 9), command=st.sampled_from(["pause", "evict", "priority"]))
    def command(self, pick: int, command: str) -> None:
        names = [view.tenant.name for view in self.node.machine.tenants()]
        name = names[pick % len(names)]
        if command == "pause":
            self.node.tell(TenantsPaused(9, OWN_UID, True, (name,), False, pick % 2 == 0))
        elif command == "evict":
            self.node.tell(EvictionRequested(9, OWN_UID, True, (name,)))
        else:
            self.node.tell(PriorityChanged(9, OWN_UID, True, name, pick))

    @rule(step_ns=st.sampled_from([1, 10**9, 10**11]))
    def wait(self, step_ns: int) -> None:
        self.node.tell(TimerFired(), step_ns)

    @rule(error=st.sampled_from(DISK_ERRORS), remaining_bytes=st.integers(0, 600))
    def fail(self, error: int, remaining_bytes: int) -> None:
        self.disk.fail(error, remaining_bytes)

    @rule()
    def repair(self) -> None:
        self.disk.repair()

    @rule()
    def probe(self) -> None:
        self.node.probe()

    @rule()
    def delete_journal(self) -> None:
        self.node.path.unlink(missing_ok=True)

    @precondition(lambda self: self.node.journal.is_present)
    @rule()
    def restart(self) -> None:
        """A killed node starts again on a disk that works; it has what the journal has."""
        self.node.close()
        self.disk.repair()
        self.node = NodeOnDisk(self.home, self.disk, 2000)
        self.node.tell(STARTED)

    def peers(self) -> list[int]:
        return sorted(self.node.machine.registry.slot_of_peer)

    @invariant()
    def check(self) -> None:
        node = self.node
        node.machine.check()
        if node.journal.is_present:
            replayed = node.replayed()
            if not node.host.problem:
                assert replayed == node.machine.snapshot()
            held = {(tenant.grant.slot, tenant.grant.generation) for _, tenant in replayed.tenants}
            holding = {(view.tenant.grant.slot, view.tenant.grant.generation) for view in node.machine.tenants()}
            assert holding <= held, "every tenant that runs is in the journal, whatever happens to the node"


TestFailingDisk = FailingDisk.TestCase
TestFailingDisk.settings = settings(max_examples=examples(60, 2000), stateful_step_count=30, deadline=None)
