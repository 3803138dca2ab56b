"""Do launches wait at the gate when they must, all kinds of them, and does nobody stall by another's death?"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from cotenant.domain.gate import GatePolicy
from cotenant.domain.instant import SECOND_NS
from cotenant.live.clock import pause
from tests.effort import examples
from tests.live.gates import OFFLINE, ONLINE, Gate
from tests.live.hooks import Hook, hook_before
from tests.live.softgpus import PROGRAMS

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
KILLS = examples(30, 500)
"""How many processes die at the gate."""
WINDOW_NS = 100_000_000
"""What was not used for so long is lost, also to one that launches what costs nothing; as in native/gate/limit.h."""


class Seats:
    """Two tenants of one soft GPU."""

    def __init__(self, softgpu: Path, home: Path) -> None:
        self.gate = Gate(home / "gates")
        self.hooks: list[Hook] = [hook_before(softgpu, home / f"hook{slot}") for slot in (ONLINE, OFFLINE)]
        self.started: list[subprocess.Popen[str]] = []

    def start(self, slot: int, program: str, *arguments: str) -> subprocess.Popen[str]:
        hook = self.hooks[slot]
        made = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), *arguments],
            env=self.gate.environ(hook.environ("shim"), hook.records, slot),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(made)
        return made

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        self.gate.close()

    def count(self, slot: int, word: str) -> int:
        found = self.gate.page(slot)[word]
        assert isinstance(found, int)
        return found


@pytest.fixture
def seats(softgpu: Path, tmp_path: Path) -> Iterator[Seats]:
    made = Seats(softgpu, tmp_path)
    yield made
    made.close()


def say(process: subprocess.Popen[str], order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    stream: IO[str] | None = process.stdout
    assert stream is not None
    return stream.readline().strip()


def has_spoken(process: subprocess.Popen[str]) -> bool:
    """Whether there is something to hear, after a moment."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.001)[0])


def test_every_kind_of_launch_waits_and_a_capture_does_not(seats: Seats) -> None:
    """Graphs and per-thread streams escape no more than kernels do; a change of the rules acts at the next launch."""
    program = seats.start(OFFLINE, "ordered.py")
    assert heard(program) == "ready"
    for order in ("kernel", "thread", "graph", "copy", "memset"):
        before, waits = seats.count(OFFLINE, "sequence"), seats.count(OFFLINE, "waits")
        seats.gate.seat(paused=True)
        say(program, "capture")
        assert heard(program) == "capture"
        say(program, order)
        while not seats.count(OFFLINE, "wanted_ns"):
            assert program.poll() is None
            pause(0.001)
        assert seats.count(OFFLINE, "sequence") == before
        seats.gate.seat()
        assert heard(program) == order
        assert seats.count(OFFLINE, "sequence") == before + 1
        assert seats.count(OFFLINE, "waits") == waits + 1
    seats.gate.seat(online=7, offline=2)  # it is above now, and asks no more
    admitted = seats.count(OFFLINE, "admitted")
    say(program, "kernel")
    assert heard(program) == "kernel"
    assert seats.count(OFFLINE, "admitted") == admitted
    say(program, "end")
    assert heard(program) == "ended"
    assert program.wait() == 0


def test_a_graph_takes_the_part_that_its_kernels_do_if_they_follow_each_other(seats: Seats) -> None:
    """Of 80 SMs: 4 blocks, then 12, then 8. Side by side, nobody knows how they lie, and they count as the whole."""
    seats.gate.seat(static_ppm=500_000)
    program = seats.start(OFFLINE, "ordered.py")
    assert heard(program) == "ready"
    for order, part_ppm in (("chain", 100_000), ("forked", 1_000_000), ("graph", 50_000)):
        for _ in range(2):
            say(program, order)
            assert heard(program) == order
        assert seats.count(OFFLINE, "part_ppm") == part_ppm
    say(program, "end")
    assert heard(program) == "ended"


def test_every_kind_of_kernel_is_charged_to_its_share_and_a_copy_is_not(seats: Seats) -> None:
    """Nobody else is there, and it is held to its share all the same: the last of many waits for it."""
    seats.gate.seat(static_ppm=500_000)
    program = seats.start(OFFLINE, "ordered.py")
    assert heard(program) == "ready"
    for order in ("copy", "memset", "kernel", "together", "thread", "graph"):
        for is_first in (True, False):  # the first of its kind has no name yet
            paid_ns = seats.count(OFFLINE, "paid_ns")
            say(program, order)
            assert heard(program) == order
            now_paid_ns = seats.count(OFFLINE, "paid_ns")
            if order in {"copy", "memset"}:
                assert is_first or now_paid_ns <= max(paid_ns, seats.count(OFFLINE, "at_ns") - WINDOW_NS)
            else:
                assert is_first or now_paid_ns != paid_ns  # less, where it gets back what others overpaid
    seats.gate.seat(static_ppm=1)
    say(program, "kernel")
    before = seats.count(OFFLINE, "sequence")  # read first: what was earned while we got no processor lets it pass
    while not seats.count(OFFLINE, "over_ns"):
        assert program.poll() is None
        if has_spoken(program):  # one passes, or more: they get back what others overpaid
            assert heard(program) == "kernel"
            say(program, "kernel")
        before = seats.count(OFFLINE, "sequence")
    seats.gate.seat(static_ppm=1_000_000)  # acts on one that waits, and on what it owes
    assert heard(program) == "kernel"
    assert seats.count(OFFLINE, "sequence") == before + 1
    say(program, "end")
    assert heard(program) == "ended"
    assert program.wait() == 0


def test_a_holder_waits_for_nobody_however_those_below_die(seats: Seats) -> None:
    """Claims, debts and pages that the dead leave behind stop neither the holder nor who comes after them."""
    holder = seats.start(ONLINE, "spins.py", "1000000")
    while seats.count(ONLINE, "sequence") < 10:
        pause(0.01)
    victims = seats.start(OFFLINE, "shortlived.py", str(KILLS), "7")
    assert heard(victims) == "all killed"
    assert victims.wait() == 0
    assert seats.count(OFFLINE, "sequence") > 0  # they came as far as the gate, and through it
    assert holder.poll() is None
    launched = seats.count(ONLINE, "sequence")
    while seats.count(ONLINE, "sequence") < launched + 100:  # it goes on
        assert holder.poll() is None
        pause(0.001)
    assert (seats.count(ONLINE, "waits"), seats.count(OFFLINE, "stale")) == (0, 0)
    after = seats.start(OFFLINE, "spins.py", "2")  # between the holder's launches, or at its expense
    assert after.wait() == 0
    holder.kill()
    holder.wait()
    last = seats.start(OFFLINE, "spins.py", "2")
    assert last.wait() == 0


def test_below_an_active_holder_the_strict_wait_until_it_is_gone(seats: Seats) -> None:
    """It waits for a kernel that does not end: one that launches again and again is quiet whenever its host is late."""
    seats.gate.policy = GatePolicy.STRICT
    seats.gate.seat(patience_ns=600 * SECOND_NS)
    holder = seats.start(ONLINE, "longwait.py", "spinning")
    while not seats.count(ONLINE, "waits_ns"):
        assert holder.poll() is None
        pause(0.01)
    below = seats.start(OFFLINE, "spins.py", "2")
    while not seats.count(OFFLINE, "wanted_ns"):
        assert below.poll() is None
        pause(0.001)
    assert seats.count(OFFLINE, "sequence") == 0
    holder.kill()
    holder.wait()
    seats.gate.seat(online=None)  # as the node does for one that is gone
    assert below.wait() == 0
    assert seats.count(OFFLINE, "launches") == 4
    assert seats.count(ONLINE, "waits") == 0
