"""What the node does by itself hits whom it is meant for and nobody else, and is said when it must be."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.domain.event import Event, GpuSeen, MemoryWanted, TenantFaulted
from cotenant.domain.instant import SECOND_NS
from cotenant.domain.protect import GpuSample
from cotenant.live.clock import LiveClock, boot_ns
from cotenant.live.errand import Errands, Outcome
from cotenant.live.ledger import LiveLedgers, look_at
from cotenant.live.loop import LiveLoop
from cotenant.live.watch.books import Books
from cotenant.live.watch.kin import Kin, stat_of
from cotenant.live.watch.warden import LiveWardens, since_boot
from tests.live.indoors import descriptors, until
from tests.live.test_ledger_files import scribble
from tests.live.test_watch_kin import owner_of


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[LiveLedgers]:
    made = LiveLedgers(tmp_path, 4)
    made.grant(0, 1, 1)
    yield made
    made.close()


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


def test_a_tenant_ends_with_all_its_processes_and_nobody_else_does(
    ledgers: LiveLedgers, tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    parent, child, stranger = sleepers
    ledgers.grant(0, 2, 1)
    scribble(tmp_path, 1, 0, owner=owner_of(child.pid))
    scribble(tmp_path, 2, 0, owner=owner_of(stranger.pid))
    said: list[str] = []
    joined: list[int | None] = [start_ns(parent.pid) - 1]
    wardens = LiveWardens(ledgers, Kin(), said.append, joined_ns=lambda _: joined[0], restart_mps=lambda: None)
    wardens.kill(-1, 1, parent.pid)  # the number is of a process that began after the tenant had joined
    assert parent.poll() is None
    joined[0] = start_ns(parent.pid)
    wardens.kill(0, 1, parent.pid)
    assert parent.wait() == child.wait() == -9
    assert stranger.poll() is None
    wardens.kill(0, 1, parent.pid)  # they are gone already
    assert said == []


def test_instants_of_the_node_are_those_of_the_kernel_or_later() -> None:
    clock = LiveClock()
    before = boot_ns()
    joined = clock.now()
    assert before <= since_boot(joined, clock.now()) <= boot_ns()


def test_a_wish_for_memory_is_told_at_once_and_again_while_it_lasts(ledgers: LiveLedgers, tmp_path: Path) -> None:
    told: list[Event] = []
    books = Books(0, ledgers, Kin(), told.append)
    scribble(tmp_path, 1, 0, owner=owner_of(os.getpid()), wanted_bytes=700, booked_bytes=50)
    wanted = MemoryWanted(1, 1, 700, ((0, 0), (1, 50)))
    seats = {0: 1, 1: 1}
    books.read(seats, 0)
    books.read(seats, SECOND_NS - 1)
    assert told == [wanted]
    books.read(seats, SECOND_NS)
    assert told == [wanted, wanted]
    books.read({0: 1, 1: 2}, 2 * SECOND_NS)  # the seat is another tenant's by now
    scribble(tmp_path, 1, 0, wanted_bytes=0)
    books.read(seats, 9 * SECOND_NS)
    assert told == [wanted, wanted]


def test_denials_are_told_at_once_and_then_once_a_minute(ledgers: LiveLedgers, tmp_path: Path) -> None:
    told: list[Event] = []
    books = Books(0, ledgers, Kin(), told.append)
    denial = TenantFaulted(1, 1, "cuda", 2)
    seats = {0: 1, 1: 1}
    scribble(tmp_path, 1, 0, owner=owner_of(os.getpid()), booked_bytes=50)
    books.read(seats, 0)
    assert told == []
    scribble(tmp_path, 1, 0, denied=3)
    books.read(seats, SECOND_NS)
    books.read(seats, 2 * SECOND_NS)
    assert told == [denial]
    scribble(tmp_path, 1, 0, denied=4)
    books.read(seats, 60 * SECOND_NS)
    assert told == [denial], "not yet a minute later"
    books.read(seats, 61 * SECOND_NS)
    books.read(seats, 200 * SECOND_NS)
    assert told == [denial, denial], "what was told is not told again"
    scribble(tmp_path, 1, 0, denied=5)
    books.read({0: 1, 1: 2}, 300 * SECOND_NS)  # the seat is another tenant's by now
    assert told == [denial, denial]


def test_an_error_is_its_tenants_also_when_the_process_is_gone(ledgers: LiveLedgers, tmp_path: Path) -> None:
    books = Books(0, ledgers, Kin(), lambda _: None)
    child = subprocess.Popen(["sleep", "60"])
    scribble(tmp_path, 1, 0, owner=owner_of(child.pid), booked_bytes=50)
    books.read({1: 1}, 0)
    assert not books.had(1, child.pid), "it lives"
    child.kill()
    child.wait()
    books.read({1: 1}, SECOND_NS)
    assert books.had(1, child.pid)
    assert not books.had(0, child.pid)
    assert not books.had(1, child.pid + 1)


def test_whatever_a_tenant_scribbles_can_be_written_down_and_read_again(ledgers: LiveLedgers, tmp_path: Path) -> None:
    told: list[Event] = []
    most = (1 << 64) - 1
    ledgers.grant(0, 2, 1)
    for slot in (1, 2):
        names = ("booked_bytes", "own_bytes", "own_version", "managed_bytes", "begun", "ended", "wanted_bytes", "fault")
        scribble(tmp_path, slot, 0, owner=owner_of(os.getpid()), **dict.fromkeys(names, most))
        scribble(tmp_path, slot, 1, owner=most, **dict.fromkeys(names, most))
    books = Books(0, ledgers, Kin(), told.append)
    books.read({1: 1, 2: 1}, 0)
    books.settle({os.getpid(): most, 1: None})
    kinds = {type(event) for event in told}
    assert kinds == {MemoryWanted, TenantFaulted}
    held = sum(books.held(slot) for slot in range(3))
    told.append(GpuSeen(0, GpuSample(online_memory_bytes=held, offline_memory_bytes=held)))
    for event in told:
        again = msgspec.json.decode(msgspec.json.encode(event), type=type(event))
        assert again == event


def test_what_a_context_takes_is_learned_from_sense_alone(ledgers: LiveLedgers, tmp_path: Path) -> None:
    """A count of contexts below none, or of more than the bytes there are, would teach all tenants that one is free."""
    books = Books(0, ledgers, Kin(), lambda _: None)

    def seen(contexts: int, held_bytes: int) -> int:
        scribble(tmp_path, 1, 0, owner=owner_of(os.getpid()), contexts=contexts)
        books.read({1: 1}, 0)
        books.settle({os.getpid(): held_bytes})
        look = look_at(tmp_path, 0)
        assert look is not None
        return look.context_bytes

    assert seen(1, 300) == 300
    assert seen((1 << 64) - 1, 300) == 300
    assert seen(301, 300) == 300
    assert seen(2, 500) == 250  # the least that was seen
    books.expect(0)
    assert seen(1, 200) == 200
    books.expect(400)
    assert seen(1, 100) == 400  # the node's own word


def test_errands_come_back_in_order_and_leave_nothing_open() -> None:
    before = descriptors()
    loop = LiveLoop(LiveClock(0))
    errands = Errands(loop, "test")
    came: list[object] = []
    deeds = [lambda: 1, lambda: 1 // 0, lambda: 3]
    threads: list[threading.Thread] = []

    def told(outcome: Outcome[int]) -> None:
        threads.append(threading.current_thread())
        came.append(outcome.error if outcome.error is not None else outcome.result())
        if len(came) == len(deeds):
            loop.stop("all are back")

    for deed in deeds:
        errands.send(deed, told)
    loop.run()
    first, second, third = came
    assert (first, third) == (1, 3)
    assert isinstance(second, ZeroDivisionError)
    assert threads == [threading.current_thread()] * 3
    errands.close()
    loop.close()
    until(lambda: descriptors() <= before)  # fewer, where an earlier test's are closed only now
