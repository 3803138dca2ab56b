"""What other systems of this kind are known to get wrong: does any of it happen here?

Each of these was met in practice by users of a library that stands between programs and the driver. Most are shown not
to happen by a test of the part that it concerns; the table says by which. The others are here.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.domain.gate import GatePolicy
from cotenant.live.clock import pause
from cotenant.live.softgpu import manage
from tests.effort import examples
from tests.live.gates import OFFLINE, ONLINE
from tests.live.ledgers import GENERATION, Quotas
from tests.live.test_gate_hook import Seats
from tests.tool import ROOT

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

MIB, GIB = 1 << 20, 1 << 30
FULL = "CUDA_ERROR_OUT_OF_MEMORY"
STOPS = examples(20, 250)
"""How often a process is stopped at any moment."""

# What goes wrong elsewhere, and what shows that it does not here: a file, and words that are in it.
SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "a pool's allocation passes a quota that is far smaller": (
        ("tests/live/test_known_failures.py", "def test_twenty_gib_do_not_pass_a_quota_of_one"),
        ("tests/live/test_memory_beyond.py", "def test_a_pool_counts_by_what_it_reserves"),
        ("native/tests/hook_pools.c", "int main"),
    ),
    "memory is freed in the books and not by the driver": (
        ("tests/live/test_memory_quota.py", "def test_one_quota_over_all_processes_and_nobody_else_notices"),
        ("tests/live/test_memory_quota.py", "def test_the_ledger_is_the_devices_truth_after_every_call"),
        ("tests/live/test_memory_beyond.py", "def test_what_a_destroyed_pool_gave_counts_until_it_is_freed"),
    ),
    "an allocation is seen by nobody once slots were moved together": (
        ("tests/live/test_known_failures.py", "def test_what_a_tenant_holds_stays_its_own_whoever_leaves_before_it"),
        ("tests/live/test_ledger_files.py", "def test_an_account_is_its_generations_and_keeps_its_lines"),
        ("tests/e2e/test_restart.py", "def test_tenants_of_a_killed_daemon_come_back_to_their_own_slots"),
    ),
    "graphs escape, with their kernels or with their memory": (
        ("tests/live/test_gate_hook.py", "def test_every_kind_of_launch_waits_and_a_capture_does_not"),
        ("tests/live/test_hook_records.py", "def test_a_capture_is_no_work_and_a_graph_is_one_piece"),
        ("tests/live/test_memory_beyond.py", "def test_graphs_memory_does_not_escape"),
    ),
    "a priority acts only at the daemon's next round": (
        ("tests/e2e/test_without_the_daemon.py", "def test_a_priority_acts_at_the_next_launch_without_the_daemon"),
        ("tests/live/test_gate_files.py", "def test_a_wish_is_on_the_roster_when_it_is_confirmed"),
    ),
    "a lock of somebody who died or stopped stalls all others": (
        ("tests/live/test_known_failures.py", "def test_a_process_that_stops_at_any_moment_keeps_nobody_from_memory"),
        ("tests/live/test_known_failures.py", "def test_a_tenant_that_stops_at_any_moment_keeps_nobody_from_launching"),
        ("tests/live/test_gate_hook.py", "def test_a_holder_waits_for_nobody_however_those_below_die"),
        (
            "tests/live/test_watch_ledger.py",
            "def test_whoever_is_killed_in_the_midst_of_anything_leaves_nothing_behind",
        ),
        ("native/tests/gate_interleave.c", "int main"),
        ("native/tests/ledger_interleave.c", "whoever stops for ever"),
        ("native/tests/ledger_races.c", "what do those leave that are killed"),
        ("tests/e2e/test_one_node.py", "def test_a_node_that_was_killed_leaves_no_lock"),
    ),
    "programs end when the daemon dies, or are never found again": (
        ("tests/e2e/test_gate_launch_kills.py", "def test_tenants_die_while_they_launch_and_so_does_the_daemon"),
        ("tests/e2e/test_without_the_daemon.py", "def test_a_daemon_that_dies_while_a_tenant_drains"),
        ("tests/e2e/test_without_the_daemon.py", "def test_a_daemon_that_dies_while_a_program_ends"),
        ("tests/e2e/test_without_the_daemon.py", "def test_a_daemon_that_dies_while_a_program_is_suspended"),
        ("tests/live/test_watch_ledger.py", "def test_a_node_that_comes_back_finds_who_died_meanwhile"),
    ),
    "a launch into a thread's own stream becomes one into the legacy stream": (
        ("tests/live/programs/twins.py", "cuLaunchKernel_ptsz"),
        ("tests/live/test_hook_same.py", "def test_programs_run_the_same"),
        ("tests/native/test_hook_list.py", "_ptsz"),
    ),
}


@pytest.mark.parametrize("failure", SHOWN)
def test_each_failure_has_tests(failure: str) -> None:
    for file, words in SHOWN[failure]:
        assert words in (ROOT / file).read_text(encoding="utf-8"), f"{failure}: {file} no longer says {words!r}"


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A device that has more than is asked for."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, memory_bytes=64 * GIB)
    yield directory
    manage.destroy(directory)


def test_twenty_gib_do_not_pass_a_quota_of_one(large: Path, tmp_path: Path) -> None:
    """The device has them, and whoever has no quota gets them: it is the quota that says no, in all ways to ask."""
    quotas = Quotas(large, tmp_path, GIB, 0)
    try:
        tenant, free = quotas.start(0), quotas.start(1)
        pools = [process.do("pool_make", exportable=False) for process in (tenant, free)]
        ways = (
            ("pool_alloc", pools[0], 20 * GIB),
            ("alloc_async", 20 * GIB),
            ("alloc", 20 * GIB),
            ("create", 20 * GIB),
        )
        assert [tenant.code(*way) for way in ways] == [FULL] * len(ways)
        assert tenant.code("launch", tenant.do("graph", 20 * GIB)) == FULL
        assert quotas.truth(0, "memory_peak_bytes") == 0
        free.do("pool_alloc", pools[1], 20 * GIB)
        assert quotas.truth(1) == 20 * GIB
        tenant.do("pool_alloc", pools[0], GIB // 2)  # and within it the pool works
        assert quotas.held(0) == quotas.truth(0) == GIB // 2
    finally:
        quotas.close()


def test_what_a_tenant_holds_stays_its_own_whoever_leaves_before_it(softgpu: Path, tmp_path: Path) -> None:
    quotas = Quotas(softgpu, tmp_path, 4 * MIB, 4 * MIB, 4 * MIB)
    try:
        processes = [quotas.start(slot) for slot in range(3)]
        kept = [process.do("alloc", 3 * MIB) for process in processes]
        last = processes[2]
        for slot in (1, 0):  # those before it go, and others come into their slots
            processes[slot].kill()
            quotas.bury()
            quotas.ledgers.grant(0, slot, GENERATION + 1)
            assert [quotas.held(slot), quotas.held(2)] == [0, 3 * MIB]
            assert quotas.truth(2) == 3 * MIB
            assert last.code("alloc", 2 * MIB) == FULL
        assert quotas.line(last).slot == 2
        last.do("free", kept[2])
        assert quotas.held(2) == quotas.truth(2) == 0
        last.do("alloc", 4 * MIB)
        assert quotas.held(2) == quotas.truth(2) == 4 * MIB
    finally:
        quotas.close()


# -- stopped, not dead: nothing tells of it, and nothing may wait for it ---------------------------------------------


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not stopped(pid):
        pause(0.0005)


def test_a_process_that_stops_at_any_moment_keeps_nobody_from_memory(softgpu: Path, tmp_path: Path) -> None:
    """Of its own tenant, where the quota has room for both, and of another."""
    quotas = Quotas(softgpu, tmp_path, 20 * MIB, 20 * MIB)
    try:
        churner, own, other = quotas.start(0), quotas.start(0), quotas.start(1)
        churner.tell("churn", 8 * MIB)
        rng = random.Random(5)
        for number in range(STOPS):
            pause(rng.random() * 0.01)
            stop(churner.process.pid)
            for process in (own, other):
                process.do("free", process.do("alloc", 12 * MIB))
            if number % 5 == 0:  # what may fit once the other is done is waited for, but not for ever
                assert own.code("alloc", 21 * MIB) == FULL
            assert quotas.held(0) in {0, 8 * MIB}
            os.kill(churner.process.pid, signal.SIGCONT)
        assert churner.process.poll() is None
        churner.kill()
        quotas.bury()
        own.do("alloc", 20 * MIB)
        assert quotas.held(0) == quotas.truth(0) == 20 * MIB
    finally:
        quotas.close()


@pytest.mark.parametrize("policy", [GatePolicy.FILL, GatePolicy.STRICT])
def test_a_tenant_that_stops_at_any_moment_keeps_nobody_from_launching(
    policy: GatePolicy, softgpu: Path, tmp_path: Path
) -> None:
    """Above or below, with its work on the device, its claim on the floor or its host in a call that waits."""
    seats = Seats(softgpu, tmp_path)
    try:
        seats.gate.policy = policy
        seats.gate.seat()
        tenants = {slot: seats.start(slot, "spins.py", "100000000") for slot in (ONLINE, OFFLINE)}
        rng = random.Random(7)
        while not seats.count(ONLINE, "sequence"):
            pause(0.01)
        for number in range(STOPS):
            still, other = (ONLINE, OFFLINE) if number % 2 else (OFFLINE, ONLINE)
            pause(rng.random() * 0.01)
            stop(tenants[still].pid)
            before = seats.count(other, "sequence")
            while seats.count(other, "sequence") < before + 3:
                assert tenants[other].poll() is None
                pause(0.0005)
            os.kill(tenants[still].pid, signal.SIGCONT)
        assert seats.count(ONLINE, "waits") == 0
    finally:
        seats.close()
