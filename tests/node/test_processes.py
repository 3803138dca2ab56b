"""The registry of processes: who belongs to a tenant, and that no other process is ever signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import PeerError
from cotenant.gate.process_pages import read_account
from cotenant.gate.shared_pages import SealedPage
from cotenant.gate.tenant_table import read_processes
from cotenant.node.daemon.enforcer import since_boot
from cotenant.node.daemon.proc import ProcessTree, TaskCount, container_of, parse_numbers, parse_stat
from cotenant.node.daemon.processes import ONLINE_RESERVE, RECONNECT_NS, TENANT_PROCESSES
from cotenant.node.model.admission import Reject
from cotenant.runner.clock import LiveClock, boot_ns
from cotenant.units.instant import SECOND_NS
from tests.support.node_in_process import descriptors, until
from tests.support.process_pages import HookPages, Registry, peer_of

pytestmark = pytest.mark.live

CONTAINER = f"/system.slice/docker-{'a' * 64}.scope"
OTHER_CONTAINER = f"/kubepods/pod7/{'b' * 64}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


class Tree:
    """A process with a child, which both sleep; the child is another process of the same tenant."""

    def __init__(self) -> None:
        script = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
        self.root = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert self.root.stdout is not None
        self.child = int(self.root.stdout.readline())
        self.child_pidfd = os.pidfd_open(self.child)

    def is_child_alive(self) -> bool:
        stat = ProcessTree().stat(self.child)
        return stat is not None and stat.state != "Z"

    def close(self) -> None:
        for pidfd in (self.child_pidfd,):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self.root.kill()
        self.root.wait()
        assert self.root.stdout is not None
        self.root.stdout.close()


@pytest.fixture
def trees() -> Iterator[list[Tree]]:
    made = [Tree() for _ in range(3)]
    yield made
    for tree in made:
        tree.close()


# ---- attaching -----------------------------------------------------------------------------------------------------


def table_of(registry: Registry) -> list[tuple[int, int, int]]:
    copy = registry.tables.copy(0)
    assert copy is not None
    return [(process.index, process.generation, process.tenant) for process in read_processes(copy)]


def test_page_is_announced_before_the_table_names_the_process(registry: Registry) -> None:
    tables: list[list[tuple[int, int, int]]] = []
    registry.log.on_page = lambda _: tables.append(table_of(registry))
    _, attached = registry.attach(1)
    assert tables == [[]]
    assert table_of(registry) == [(attached.index, attached.generation, 1)]
    assert [page.epoch for page in registry.log.pages] == [attached.epoch] == [1]
    assert len(attached.descriptors) == 3


def test_pages_that_can_be_resized_are_refused(registry: Registry) -> None:
    before = descriptors()
    peer = peer_of(os.getpid())
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 16384)
    with pytest.raises(PeerError, match="sealed"):
        registry.processes.attach(0, (1, 1), peer, descriptor, None)
    small = SealedPage.create("small", 4096)
    with pytest.raises(PeerError, match="16384 bytes"):
        registry.processes.attach(0, (1, 1), peer, os.dup(small.descriptor), None)
    small.close()
    os.close(peer.pidfd)
    assert table_of(registry) == []
    assert descriptors() == before


def test_ended_process_leaves_and_its_memory_counts_until_the_device_has_released_it(registry: Registry) -> None:
    process = subprocess.Popen(["sleep", "600"])
    hook, attached = registry.attach(1, process)
    hook.write(allocated_bytes=700, own_bytes=50)
    process.kill()
    process.wait()
    while not registry.log.left:
        registry.loop.run_once()
    assert registry.log.left == [(1, 1)]
    assert table_of(registry) == []
    assert registry.processes.page(0, attached.index) is None
    assert registry.ledgers.held(0, 1) == 750
    registry.ledgers.settle(0, lambda pid: pid != process.pid)
    assert registry.ledgers.held(0, 1) == 750
    registry.ledgers.settle(0, lambda pid: pid == process.pid)
    assert registry.ledgers.held(0, 1) == 0


def test_account_rises_before_the_entry_is_removed(registry: Registry) -> None:
    hook, _ = registry.attach(1)
    hook.write(allocated_bytes=700)
    seen: list[int] = []
    detach = registry.tables.detach

    def observed(gpu: int, index: int) -> None:
        with Path(f"/proc/self/fd/{registry.grants.handle(1, 0)}").open("rb") as page:
            seen.append(read_account(page.read()).unattached_bytes)
        detach(gpu, index)

    registry.tables.detach = observed  # type: ignore[method-assign]
    registry.processes.remove((1, 1))
    assert seen == [700]


def test_process_that_attaches_again_replaces_its_earlier_pages(registry: Registry) -> None:
    _, first = registry.attach(1)
    registry.processes.disconnect(0, first.index, first.generation)
    _, second = registry.attach(1, previous=(first.index, first.generation))
    assert (second.index, second.generation) == (first.index, first.generation)
    assert second.epoch > first.epoch
    assert registry.processes.count((1, 1)) == 1
    assert registry.log.left == []


def test_live_process_without_a_connection_leaves_after_some_seconds(registry: Registry) -> None:
    _, attached = registry.attach(1)
    registry.processes.disconnect(0, attached.index, attached.generation)
    registry.now = RECONNECT_NS - 1
    registry.processes.expire()
    assert registry.processes.count((1, 1)) == 1
    registry.now = RECONNECT_NS
    registry.processes.expire()
    assert registry.processes.count((1, 1)) == 0
    assert registry.log.left == [(1, 1)]


def test_index_of_another_process_is_not_given_away(registry: Registry, trees: list[Tree]) -> None:
    _, first = registry.attach(1, trees[0].root)
    _, second = registry.attach(2, trees[1].root, previous=(first.index, first.generation))
    assert second.index != first.index
    assert second.generation != first.generation


def test_offline_tenants_leave_indexes_for_online_ones(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, trees: list[Tree]
) -> None:
    monkeypatch.setattr("cotenant.node.daemon.processes.PROCESSES", ONLINE_RESERVE + 1)
    registry.attach(1, trees[0].root)
    hook, peer = HookPages(), peer_of(trees[1].root)
    refused = registry.processes.attach(0, (2, 1), peer, hook.descriptor(), None)
    assert isinstance(refused, Reject)
    os.close(peer.pidfd)
    hook.close()
    registry.attach(0, trees[1].root)
    monkeypatch.setattr("cotenant.node.daemon.processes.TENANT_PROCESSES", 1)
    hook, peer = HookPages(), peer_of(trees[2].root)
    assert isinstance(registry.processes.attach(0, (0, 1), peer, hook.descriptor(), None), Reject)
    os.close(peer.pidfd)
    hook.close()
    assert TENANT_PROCESSES + ONLINE_RESERVE < 256


# ---- descent -------------------------------------------------------------------------------------------------------


def test_descendants_belong_to_the_tenant_of_the_nearest_ancestor(registry: Registry, trees: list[Tree]) -> None:
    outer, other, _ = trees
    peer = peer_of(outer.root)
    registry.processes.supervise((1, 1), peer)
    os.close(peer.pidfd)
    assert registry.processes.tenant_of(outer.root.pid) == (1, 1)
    assert registry.processes.tenant_of(outer.child) == (1, 1)
    assert registry.processes.tenant_of(other.child) is None
    registry.attach(2, outer.child)
    assert registry.processes.tenant_of(outer.child) == (2, 1)
    assert registry.processes.tenant_of(os.getpid()) is None


def test_what_the_node_started_is_not_a_tenants(registry: Registry, trees: list[Tree]) -> None:
    """`cotenant run` may have started the node: then all that the node starts descends from a tenant's supervisor."""
    peer = peer_of(os.getppid())
    registry.processes.supervise((1, 1), peer)
    os.close(peer.pidfd)
    assert registry.processes.tenant_of(trees[0].child) is None
    assert registry.processes.is_of_node(trees[0].child)


def test_orphan_is_remembered_as_its_tenants(registry: Registry) -> None:
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    pidfd = os.pidfd_open(orphan)
    middle = subprocess.Popen(["sleep", "600"])
    try:
        registry.attach(1, parent)
        registry.attach(1, middle)
        registry.processes.remember_descendants()
        parent.stdin.close()
        parent.wait()
        registry.loop.run_once()
        assert registry.processes.tenant_of(orphan) == (1, 1)
        registry.processes.remember_descendants()
        assert registry.processes.tenant_of(orphan) == (1, 1)
        registry.processes.kill((1, 1))
        until(lambda: ProcessTree().stat(orphan) is None or ProcessTree().stat(orphan).state == "Z")  # type: ignore[union-attr]
    finally:
        for process in (parent, middle):
            process.kill()
            process.wait()
        parent.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


class FakeProc:
    """A proc filesystem and a cgroup hierarchy in files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cgroups = home / "cgroup"
        self.tree = ProcessTree(home, self.cgroups)

    def add(self, pid: int, parent: int, start: int, cgroup: str = "/") -> None:
        directory = self.home / str(pid)
        (directory / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        fields = ["S", str(parent), "7", *["1"] * 16, str(start), *["0"] * 30]
        (directory / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        (directory / "task" / str(pid) / "children").write_text("")


class CountingTree(ProcessTree):
    """Counts the searches for descendants."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: TaskCount | None = TaskCount(b"1", b"1")
        self.searches = 0

    def task_count(self) -> TaskCount | None:
        return self.tasks

    def descendants(self, roots: Iterable[int]) -> list[int]:
        self.searches += 1
        return super().descendants(roots)


def test_descendants_are_searched_again_when_there_are_new_processes_or_tenants(trees: list[Tree]) -> None:
    tree = CountingTree()
    registry = Registry(tree=tree)

    def searches() -> int:
        before = tree.searches
        registry.processes.remember_descendants()
        return tree.searches - before

    try:
        registry.attach(1, trees[0].root)
        assert [searches(), searches()] == [1, 0]
        tree.tasks = TaskCount(b"1", b"2")
        assert [searches(), searches()] == [1, 0], "a process was created, and another one ended"
        tree.tasks = TaskCount(b"2", b"2")
        assert [searches(), searches()] == [1, 0], "a process ended"
        registry.attach(2, trees[1].root)
        assert [searches(), searches()] == [1, 0], "it may have had descendants before"
        assert registry.processes.tenant_of(trees[1].child) == (2, 1)
        registry.now += SECOND_NS
        assert [searches(), searches()] == [1, 0], "the count of a container may not be true"
        tree.tasks = None
        assert [searches(), searches()] == [1, 1], "the count cannot be read"
    finally:
        registry.close()


def test_count_of_tasks_changes_with_a_new_process() -> None:
    tree = ProcessTree()
    before = tree.task_count()
    assert before is not None
    subprocess.run(["true"], check=True)
    assert tree.task_count() != before


def test_reused_number_is_not_an_ancestor(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10, 1, 100)
    proc.add(11, 10, 200)
    assert [pid for pid, _ in proc.tree.ancestors(11)] == [11, 10]
    proc.add(10, 1, 300)  # the parent ended, and another process got its number
    assert [pid for pid, _ in proc.tree.ancestors(11)] == [11]


def test_container_with_processes_of_one_tenant_belongs_to_it(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    own, other = os.getpid(), os.getppid()
    proc.add(own, 1, 100, CONTAINER)
    proc.add(other, 1, 100, OTHER_CONTAINER)
    proc.add(50, 1, 100, CONTAINER + "/deeper")
    proc.add(51, 1, 100, OTHER_CONTAINER)
    proc.add(52, 1, 100, "/user.slice")
    registry = Registry(tree=proc.tree)
    try:
        registry.processes._own_container = ""
        registry.attach(1, own, cgroup=CONTAINER)
        registry.attach(2, other, cgroup=OTHER_CONTAINER)
        assert registry.processes.tenant_of(50) == (1, 1)
        assert registry.processes.tenant_of(51) == (2, 1)
        assert registry.processes.tenant_of(52) is None
        assert registry.processes.container((1, 1)) == CONTAINER
        peer = peer_of(other, CONTAINER)
        assert registry.processes.shares_container((1, 1), peer)
        assert not registry.processes.shares_container((2, 1), peer)
        assert registry.processes.related(peer)[0] == (1, 1)
        registry.processes.supervise((0, 1), peer)  # a second tenant in the container
        os.close(peer.pidfd)
        assert registry.processes.tenant_of(50) is None
        assert registry.processes.container((1, 1)) == ""
    finally:
        registry.close()


def test_container_of_the_node_itself_belongs_to_no_tenant(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(os.getpid(), 1, 100, CONTAINER)
    proc.add(50, 1, 100, CONTAINER)
    registry = Registry(tree=proc.tree)
    try:
        registry.attach(1, os.getppid(), cgroup=CONTAINER)
        assert registry.processes.tenant_of(50) is None
    finally:
        registry.close()


@pytest.mark.parametrize(
    "cgroup, container",
    [
        ("/", ""),
        ("/user.slice/user-1000.slice/session-2.scope", ""),
        (CONTAINER, CONTAINER),
        (OTHER_CONTAINER + "/init.scope", OTHER_CONTAINER),
        (f"/machine.slice/libpod-{'c' * 64}.scope/container", f"/machine.slice/libpod-{'c' * 64}.scope"),
        ("/lxc.payload.web/init", "/lxc.payload.web"),
    ],
)
def test_container_is_found_in_a_cgroup_path(cgroup: str, container: str) -> None:
    assert container_of(cgroup) == container


@given(st.binary(max_size=300))
def test_any_bytes_decode_to_a_process_or_none(text: bytes) -> None:
    stat = parse_stat(text)
    assert stat is None or stat.start_ticks >= 0
    assert all(number >= 0 for number in parse_numbers(text))


@given(st.binary(max_size=16).filter(lambda name: b"\n" not in name), st.integers(0, 1 << 62), st.integers(0, 1 << 22))
def test_process_name_cannot_forge_parent_and_start(name: bytes, start: int, parent: int) -> None:
    fields = [b"S", str(parent).encode(), *[b"1"] * 17, str(start).encode(), *[b"0"] * 30]
    stat = parse_stat(b"42 (" + name + b") " + b" ".join(fields) + b"\n")
    assert stat is not None
    assert (stat.state, stat.parent, stat.start_ticks) == ("S", parent, start)


# ---- killing -------------------------------------------------------------------------------------------------------


def test_tenant_is_killed_with_all_its_descendants_only(registry: Registry, trees: list[Tree]) -> None:
    own, nested, stranger = trees
    peer = peer_of(own.root)
    registry.processes.supervise((1, 1), peer)
    os.close(peer.pidfd)
    registry.attach(2, nested.root)
    hook, _ = registry.attach(1, own.child)
    hook.write(fault=stranger.root.pid, allocated_bytes=stranger.child)  # no number in the pages matters
    registry.processes.kill((1, 1))
    assert own.root.wait() == -signal.SIGKILL
    until(lambda: not own.is_child_alive())
    assert nested.root.poll() is None
    assert stranger.root.poll() is None
    assert stranger.is_child_alive()
    registry.processes.kill((1, 1))  # they are gone already
    assert registry.reports == []


def test_process_of_another_user_does_not_save_the_others(
    registry: Registry, trees: list[Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that does not run as root may not signal every process of its tenants."""
    own = trees[0]
    registry.attach(1, own.root)
    send, protected = signal.pidfd_send_signal, own.root.pid

    def send_as_user(pidfd: int, number: int) -> None:
        if f"Pid:\t{protected}\n" in Path(f"/proc/self/fdinfo/{pidfd}").read_text():
            raise PermissionError
        send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_as_user)
    registry.processes.signal((1, 1), signal.SIGCONT)
    [report] = registry.reports
    assert f"cannot signal process {protected}" in report
    registry.processes.kill((1, 1))
    until(lambda: not own.is_child_alive())
    assert own.root.wait() == 0, "it ended by itself, as its child was killed"
    assert "cannot end all processes of the tenant in slot 1" in registry.reports[-1]


def test_supervisor_is_kept_unless_it_uses_the_device(registry: Registry, trees: list[Tree]) -> None:
    for tree in trees[:2]:
        peer = peer_of(tree.root)
        registry.processes.supervise((1 if tree is trees[0] else 2, 1), peer)
        os.close(peer.pidfd)
    registry.processes.device_holders = frozenset({trees[1].root.pid})
    registry.processes.kill((1, 1), keep_supervisor=True)
    until(lambda: not trees[0].is_child_alive())
    registry.processes.kill((2, 1), keep_supervisor=True)
    assert trees[1].root.wait() == -signal.SIGKILL
    assert trees[2].is_child_alive()
    stat = ProcessTree().stat(trees[0].root.pid)
    assert stat is not None  # it may have ended by itself: it waited for its child
    assert trees[0].root.wait() >= 0


def test_process_that_forks_while_it_is_killed_leaves_nothing(registry: Registry) -> None:
    script = "import os, sys\nprint(flush=True)\nwhile os.fork() == 0: pass\nwhile True: pass\n"
    forker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert forker.stdout is not None
    forker.stdout.readline()
    peer = peer_of(forker)
    registry.processes.supervise((1, 1), peer)
    os.close(peer.pidfd)
    time.sleep(0.02)
    registry.processes.kill((1, 1))
    forker.wait()
    forker.stdout.close()

    def members() -> list[int]:
        stats = [
            (int(entry.name), ProcessTree().stat(int(entry.name)))
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
        ]
        return [pid for pid, stat in stats if stat is not None and stat.group == forker.pid and stat.state != "Z"]

    try:
        until(lambda: not members())
    finally:
        stopped: set[int] = set()
        while remaining := set(members()) - stopped:  # they may still start others
            for pid in remaining:
                os.kill(pid, signal.SIGSTOP)
            stopped |= remaining
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)


def test_process_start_instants_follow_the_kernel() -> None:
    clock = LiveClock()
    before = boot_ns()
    joined = clock.now()
    assert before <= since_boot(joined, clock.now()) <= boot_ns()
