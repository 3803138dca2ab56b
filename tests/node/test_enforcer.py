"""The enforcer acts on the intended tenant only, and ledger checks report what they find."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.gate.ledger_file import LiveLedgers, read_ledger_snapshot
from cotenant.node.daemon.enforcer import LiveEnforcer, since_boot
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from cotenant.node.daemon.monitor.processes import ProcessTable, stat_of
from cotenant.node.model.event import Event, GpuSampled, MemoryRequested, TenantFaulted, TimerFired
from cotenant.node.model.protection import GpuSample
from cotenant.runner.background import BackgroundTasks, TaskResult
from cotenant.runner.clock import LiveClock, boot_ns
from cotenant.runner.live_loop import LiveLoop
from cotenant.units.instant import SECOND_NS
from tests.gate.test_ledger_files import scribble
from tests.node.test_monitor_processes import owner_of
from tests.support.node_in_process import descriptors, until

pytestmark = pytest.mark.live


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[LiveLedgers]:
    files = LiveLedgers(tmp_path, 4)
    files.grant(0, 1, 1)
    yield files
    files.close()


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield made
    for process in made:
        process.kill()
        process.wait()


def start_ns(pid: int) -> int:
    stat = stat_of(pid)
    assert stat is not None
    return stat.start_ticks * SECOND_NS // os.sysconf("SC_CLK_TCK")


def test_tenant_is_killed_with_all_its_processes_only(
    ledgers: LiveLedgers, tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    parent, child, stranger = sleepers
    ledgers.grant(0, 2, 1)
    scribble(tmp_path, 1, 0, owner=owner_of(child.pid))
    scribble(tmp_path, 2, 0, owner=owner_of(stranger.pid))
    messages: list[str] = []
    joined: list[int | None] = [start_ns(parent.pid) - 1]
    enforcer = LiveEnforcer(
        ledgers, ProcessTable(), messages.append, joined_ns=lambda _: joined[0], restart_mps=lambda: None
    )
    enforcer.kill(-1, 1, parent.pid)  # the number is of a process that began after the tenant had joined
    assert parent.poll() is None
    joined[0] = start_ns(parent.pid)
    enforcer.kill(0, 1, parent.pid)
    assert parent.wait() == child.wait() == -9
    assert stranger.poll() is None
    enforcer.kill(0, 1, parent.pid)  # they are gone already
    assert messages == []


def test_process_start_instants_follow_the_kernel() -> None:
    clock = LiveClock()
    before = boot_ns()
    joined = clock.now()
    assert before <= since_boot(joined, clock.now()) <= boot_ns()


def test_memory_request_is_reported_at_once_and_repeated(ledgers: LiveLedgers, tmp_path: Path) -> None:
    posted: list[Event] = []
    check = LedgerCheck(0, ledgers, ProcessTable(), posted.append)
    scribble(tmp_path, 1, 0, owner=owner_of(os.getpid()), wanted_bytes=700, booked_bytes=50)
    request = MemoryRequested(1, 1, 700, ((0, 0), (1, 50)))
    entries = {0: 1, 1: 1}
    check.read(entries, 0)
    check.read(entries, SECOND_NS - 1)
    assert posted == [request]
    check.read(entries, SECOND_NS)
    assert posted == [request, request]
    check.read({0: 1, 1: 2}, 2 * SECOND_NS)  # the seat is another tenant's by now
    scribble(tmp_path, 1, 0, wanted_bytes=0)
    check.read(entries, 9 * SECOND_NS)
    assert posted == [request, request]


def test_denials_are_reported_at_once_and_then_once_a_minute(ledgers: LiveLedgers, tmp_path: Path) -> None:
    posted: list[Event] = []
    check = LedgerCheck(0, ledgers, ProcessTable(), posted.append)
    denial = TenantFaulted(1, 1, "cuda", 2)
    entries = {0: 1, 1: 1}
    scribble(tmp_path, 1, 0, owner=owner_of(os.getpid()), booked_bytes=50)
    check.read(entries, 0)
    assert posted == []
    scribble(tmp_path, 1, 0, denied=3)
    check.read(entries, SECOND_NS)
    check.read(entries, 2 * SECOND_NS)
    assert posted == [denial]
    scribble(tmp_path, 1, 0, denied=4)
    check.read(entries, 60 * SECOND_NS)
    assert posted == [denial], "not yet a minute later"
    check.read(entries, 61 * SECOND_NS)
    check.read(entries, 200 * SECOND_NS)
    assert posted == [denial, denial], "an event is not posted twice"
    scribble(tmp_path, 1, 0, denied=5)
    check.read({0: 1, 1: 2}, 300 * SECOND_NS)  # the seat is another tenant's by now
    assert posted == [denial, denial]


def test_error_of_a_dead_process_belongs_to_its_tenant(ledgers: LiveLedgers, tmp_path: Path) -> None:
    check = LedgerCheck(0, ledgers, ProcessTable(), lambda _: None)
    child = subprocess.Popen(["sleep", "60"])
    scribble(tmp_path, 1, 0, owner=owner_of(child.pid), booked_bytes=50)
    check.read({1: 1}, 0)
    assert not check.had_process(1, child.pid), "it lives"
    child.kill()
    child.wait()
    check.read({1: 1}, SECOND_NS)
    assert check.had_process(1, child.pid)
    assert not check.had_process(0, child.pid)
    assert not check.had_process(1, child.pid + 1)


def test_any_ledger_bytes_can_be_journaled(ledgers: LiveLedgers, tmp_path: Path) -> None:
    posted: list[Event] = []
    most = (1 << 64) - 1
    ledgers.grant(0, 2, 1)
    for slot in (1, 2):
        names = ("booked_bytes", "own_bytes", "own_version", "managed_bytes", "begun", "ended", "wanted_bytes", "fault")
        scribble(tmp_path, slot, 0, owner=owner_of(os.getpid()), **dict.fromkeys(names, most))
        scribble(tmp_path, slot, 1, owner=most, **dict.fromkeys(names, most))
    check = LedgerCheck(0, ledgers, ProcessTable(), posted.append)
    check.read({1: 1, 2: 1}, 0)
    check.settle({os.getpid(): most, 1: None})
    kinds = {type(event) for event in posted}
    assert kinds == {MemoryRequested, TenantFaulted}
    held = sum(check.held(slot) for slot in range(3))
    posted.append(GpuSampled(0, GpuSample(online_memory_bytes=held, offline_memory_bytes=held)))
    for event in posted:
        again = msgspec.json.decode(msgspec.json.encode(event), type=type(event))
        assert again == event


def test_context_size_is_learned_from_plausible_values_only(ledgers: LiveLedgers, tmp_path: Path) -> None:
    """A count of contexts below none, or of more than the bytes there are, would teach all tenants that one is free."""
    check = LedgerCheck(0, ledgers, ProcessTable(), lambda _: None)

    def size_after(contexts: int, held_bytes: int) -> int:
        scribble(tmp_path, 1, 0, owner=owner_of(os.getpid()), contexts=contexts)
        check.read({1: 1}, 0)
        check.settle({os.getpid(): held_bytes})
        snapshot = read_ledger_snapshot(tmp_path, 0)
        assert snapshot is not None
        return snapshot.context_bytes

    assert size_after(1, 300) == 300
    assert size_after((1 << 64) - 1, 300) == 300
    assert size_after(301, 300) == 300
    assert size_after(2, 500) == 250  # the least that was seen
    check.expect(0)
    assert size_after(1, 200) == 200
    check.expect(400)
    assert size_after(1, 100) == 400  # the node's own word


def test_background_tasks_finish_in_order_and_close_their_descriptors() -> None:
    before = descriptors()
    loop: LiveLoop[Event] = LiveLoop(LiveClock(0), TimerFired())
    tasks = BackgroundTasks(loop, "test")
    results: list[object] = []
    work = [lambda: 1, lambda: 1 // 0, lambda: 3]
    threads: list[threading.Thread] = []

    def posted(outcome: TaskResult[int]) -> None:
        threads.append(threading.current_thread())
        results.append(outcome.error if outcome.error is not None else outcome.result())
        if len(results) == len(work):
            loop.stop("all are back")

    for item in work:
        tasks.submit(item, posted)
    loop.run()
    first, second, third = results
    assert (first, third) == (1, 3)
    assert isinstance(second, ZeroDivisionError)
    assert threads == [threading.current_thread()] * 3
    tasks.close()
    loop.close()
    until(lambda: descriptors() <= before)  # fewer, where an earlier test's are closed only now
