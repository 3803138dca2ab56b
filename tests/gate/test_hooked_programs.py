"""Every kind of launch waits at the gate when it must, and no death of a process stalls another process."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from cotenant.gate.rules import GatePolicy
from cotenant.runner.clock import pause
from cotenant.units.instant import SECOND_NS
from tests.support.effort import examples
from tests.support.gate_files import OFFLINE, ONLINE, Gate
from tests.support.hook_runs import Hook, hook_before
from tests.support.software_gpus import PROGRAMS

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
KILLS = examples(30, 500)
"""How many processes die at the gate."""
WINDOW_NS = 100_000_000
"""A share that is unused for this long expires, even if its launches cost nothing; see native/gate/limit.h."""


class TwoTenants:
    """Two tenants of one software GPU."""

    def __init__(self, softgpu: Path, home: Path) -> None:
        self.gate = Gate()
        self.hooks: list[Hook] = [hook_before(softgpu, home / f"hook{slot}") for slot in (ONLINE, OFFLINE)]
        self.started: list[subprocess.Popen[str]] = []

    def start(self, slot: int, program: str, *arguments: str) -> subprocess.Popen[str]:
        hook = self.hooks[slot]
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), *arguments],
            env=self.gate.environ(hook.environ("shim"), slot),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        self.gate.close()

    def count(self, slot: int, word: str) -> int:
        return self.gate.word(slot, word)


@pytest.fixture
def tenants(softgpu: Path, tmp_path: Path) -> Iterator[TwoTenants]:
    made = TwoTenants(softgpu, tmp_path)
    yield made
    made.close()


def send_command(process: subprocess.Popen[str], order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(order + "\n")
    process.stdin.flush()


def received(process: subprocess.Popen[str]) -> str:
    stream: IO[str] | None = process.stdout
    assert stream is not None
    return stream.readline().strip()


def has_spoken(process: subprocess.Popen[str]) -> bool:
    """Whether there is something to hear, after a moment."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.001)[0])


def test_every_launch_waits_and_a_capture_does_not(tenants: TwoTenants) -> None:
    """Graphs and per-thread streams escape no more than kernels do; a change of the rules acts at the next launch."""
    program = tenants.start(OFFLINE, "launch_commands.py")
    assert received(program) == "ready"
    for order in ("kernel", "thread", "graph", "copy", "memset"):
        before, waits = tenants.count(OFFLINE, "sequence"), tenants.count(OFFLINE, "waits")
        tenants.gate.set_entries(paused=True)
        send_command(program, "capture")
        assert received(program) == "capture"
        send_command(program, order)
        while not tenants.count(OFFLINE, "wanted_ns"):
            assert program.poll() is None
            pause(0.001)
        assert tenants.count(OFFLINE, "sequence") == before
        tenants.gate.set_entries()
        assert received(program) == order
        assert tenants.count(OFFLINE, "sequence") == before + 1
        assert tenants.count(OFFLINE, "waits") == waits + 1
    tenants.gate.set_entries(online=7, offline=2)  # it has the higher priority now and need not ask
    admitted = tenants.count(OFFLINE, "admitted")
    send_command(program, "kernel")
    assert received(program) == "kernel"
    assert tenants.count(OFFLINE, "admitted") == admitted
    send_command(program, "end")
    assert received(program) == "ended"
    assert program.wait() == 0


def test_sequential_graph_is_charged_the_part_of_its_kernels(tenants: TwoTenants) -> None:
    """Of 80 SMs: 4 blocks, then 12, then 8. Concurrent kernels have an unknown layout and count as the whole device."""
    tenants.gate.set_entries(static_ppm=500_000)
    program = tenants.start(OFFLINE, "launch_commands.py")
    assert received(program) == "ready"
    for order, part_ppm in (("chain", 100_000), ("forked", 1_000_000), ("graph", 50_000)):
        for _ in range(2):
            send_command(program, order)
            assert received(program) == order
        assert tenants.count(OFFLINE, "part_ppm") == part_ppm
    send_command(program, "end")
    assert received(program) == "ended"


def test_every_kernel_is_charged_to_the_share_and_a_copy_is_not(tenants: TwoTenants) -> None:
    """A single tenant is limited to its share, too: the last of many launches waits for it."""
    tenants.gate.set_entries(static_ppm=500_000)
    program = tenants.start(OFFLINE, "launch_commands.py")
    assert received(program) == "ready"
    for order in ("copy", "memset", "kernel", "together", "thread", "graph"):
        for is_first in (True, False):  # the first of its kind has no name yet
            paid_ns = tenants.count(OFFLINE, "paid_ns")
            send_command(program, order)
            assert received(program) == order
            now_paid_ns = tenants.count(OFFLINE, "paid_ns")
            if order in {"copy", "memset"}:
                assert is_first or now_paid_ns <= max(paid_ns, tenants.count(OFFLINE, "at_ns") - WINDOW_NS)
            else:
                assert is_first or now_paid_ns != paid_ns  # less if it is refunded what others overpaid
    tenants.gate.set_entries(static_ppm=1)
    send_command(program, "kernel")
    before = tenants.count(OFFLINE, "sequence")  # read first: what was earned while we got no processor lets it pass
    while not tenants.count(OFFLINE, "over_ns"):
        assert program.poll() is None
        if has_spoken(program):  # one passes, or more: they get back what others overpaid
            assert received(program) == "kernel"
            send_command(program, "kernel")
        before = tenants.count(OFFLINE, "sequence")
    tenants.gate.set_entries(static_ppm=1_000_000)  # acts on one that waits, and on what it owes
    assert received(program) == "kernel"
    assert tenants.count(OFFLINE, "sequence") == before + 1
    send_command(program, "end")
    assert received(program) == "ended"
    assert program.wait() == 0


def test_holder_does_not_wait_when_lower_priorities_are_killed(tenants: TwoTenants) -> None:
    """Claims, debts and pages of killed tenants delay neither the holder nor later tenants."""
    holder = tenants.start(ONLINE, "spins.py", "1000000")
    while tenants.count(ONLINE, "sequence") < 10:
        pause(0.01)
    victims = tenants.start(OFFLINE, "killed_children.py", str(KILLS), "7")
    assert received(victims) == "all killed"
    assert victims.wait() == 0
    assert tenants.count(OFFLINE, "sequence") > 0  # they reached the gate and passed it
    assert holder.poll() is None
    launched = tenants.count(ONLINE, "sequence")
    while tenants.count(ONLINE, "sequence") < launched + 100:  # it goes on
        assert holder.poll() is None
        pause(0.001)
    assert (tenants.count(ONLINE, "waits"), tenants.count(OFFLINE, "stale")) == (0, 0)
    after = tenants.start(OFFLINE, "spins.py", "2")  # between the holder's launches, or at its expense
    assert after.wait() == 0
    holder.kill()
    holder.wait()
    last = tenants.start(OFFLINE, "spins.py", "2")
    assert last.wait() == 0


def test_strict_policy_waits_until_the_holder_is_gone(tenants: TwoTenants) -> None:
    """It waits for a kernel that does not end: one that launches again and again is quiet whenever its host is late."""
    tenants.gate.policy = GatePolicy.STRICT
    tenants.gate.set_entries(patience_ns=600 * SECOND_NS)
    holder = tenants.start(ONLINE, "longwait.py", "spinning")
    while not tenants.count(ONLINE, "waits_ns"):
        assert holder.poll() is None
        pause(0.01)
    below = tenants.start(OFFLINE, "spins.py", "2")
    while not tenants.count(OFFLINE, "wanted_ns"):
        assert below.poll() is None
        pause(0.001)
    assert tenants.count(OFFLINE, "sequence") == 0
    holder.kill()
    holder.wait()
    tenants.gate.set_entries(online=None)  # as the node does for a tenant that left
    assert below.wait() == 0
    assert tenants.count(OFFLINE, "launches") == 4
    assert tenants.count(ONLINE, "waits") == 0
