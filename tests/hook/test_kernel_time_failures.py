"""Failures that users met with other CUDA interposition libraries do not occur here.

Users of libraries between programs and the driver have reported each of these. Tests of the affected component cover
most of them, as the table lists; this file covers the others.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate.rules import GatePolicy
from cotenant.runner.clock import pause
from cotenant.softgpu import manage
from tests.gate.test_hooked_programs import TwoTenants
from tests.support.effort import examples
from tests.support.gate_files import OFFLINE, ONLINE
from tests.support.ledger_files import GENERATION, LedgerFixture
from tests.support.tools import ROOT

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

MIB, GIB = 1 << 20, 1 << 30
FULL = "CUDA_ERROR_OUT_OF_MEMORY"
STOPS = examples(20, 250)
"""Number of times that a process is stopped at a random instant."""

# Failures of other libraries, and the tests that show their absence: a file, and words in it.
TESTS_BY_FAILURE: dict[str, tuple[tuple[str, str], ...]] = {
    "a pool's allocation passes a quota that is far smaller": (
        ("tests/hook/test_kernel_time_failures.py", "def test_twenty_gib_do_not_fit_a_quota_of_one"),
        ("tests/hook/test_memory_other_calls.py", "def test_pool_is_charged_what_it_reserves"),
        ("native/tests/hook_pools.c", "int main"),
    ),
    "memory is freed in the accounting and not by the driver": (
        ("tests/hook/test_memory_quota.py", "def test_quota_covers_all_processes_of_a_tenant_only"),
        ("tests/hook/test_memory_quota.py", "def test_ledger_equals_the_device_after_every_call"),
        ("tests/hook/test_memory_other_calls.py", "def test_allocation_of_a_destroyed_pool_is_charged_until_freed"),
    ),
    "an allocation is lost when slots are renumbered": (
        (
            "tests/hook/test_kernel_time_failures.py",
            "def test_memory_of_a_tenant_is_unaffected_by_departures",
        ),
        ("tests/gate/test_live_pages.py", "def test_later_tenant_of_a_slot_gets_another_page"),
        ("tests/node/test_restart.py", "def test_tenants_resume_their_slots_after_a_kill_of_the_daemon"),
    ),
    "graphs escape, with their kernels or with their memory": (
        ("tests/gate/test_hooked_programs.py", "def test_every_launch_waits_and_a_capture_does_not"),
        ("tests/hook/test_records.py", "def test_capture_is_no_work_and_a_graph_is_one_launch"),
        ("tests/hook/test_memory_other_calls.py", "def test_graph_memory_is_charged"),
    ),
    "a priority acts only at the daemon's next round": (
        ("tests/node/test_daemon_absent.py", "def test_priority_applies_to_the_next_launch_without_the_daemon"),
        ("tests/gate/test_hooked_programs.py", "a change of the rules acts at the next launch"),
    ),
    "a lock held by a dead or stopped process stalls all others": (
        (
            "tests/hook/test_kernel_time_failures.py",
            "def test_stopped_process_blocks_no_allocation_of_others",
        ),
        (
            "tests/hook/test_kernel_time_failures.py",
            "def test_stopped_tenant_blocks_no_launch_of_others",
        ),
        ("tests/gate/test_hooked_programs.py", "def test_holder_does_not_wait_when_lower_priorities_are_killed"),
        (
            "tests/node/test_monitor_ledger.py",
            "def test_killed_process_leaves_no_ledger_line",
        ),
        ("native/tests/gate_interleave.c", "int main"),
        ("native/tests/ledger_interleave.c", "if any of them stops forever"),
        ("native/tests/ledger_races.c", "killed processes leave"),
        ("tests/node/test_one_daemon.py", "def test_killed_node_leaves_no_lock"),
    ),
    "programs end when the daemon dies, or are never found again": (
        ("tests/gate/test_launch_kills.py", "def test_kills_of_launching_tenants_and_of_the_daemon"),
        ("tests/node/test_daemon_absent.py", "def test_daemon_dies_while_a_tenant_drains"),
        ("tests/node/test_daemon_absent.py", "def test_daemon_dies_while_a_program_ends"),
        ("tests/node/test_daemon_absent.py", "def test_daemon_dies_while_a_program_is_suspended"),
        ("tests/node/test_monitor_ledger.py", "def test_processes_attach_again_to_a_restarted_node"),
    ),
    "a launch into a thread's own stream becomes one into the legacy stream": (
        ("tests/programs/twins.py", "cuLaunchKernel_ptsz"),
        ("tests/hook/test_equivalence.py", "def test_programs_run_the_same"),
        ("tests/native/test_hook_list.py", "_ptsz"),
    ),
}


@pytest.mark.parametrize("failure", TESTS_BY_FAILURE)
def test_each_failure_has_tests(failure: str) -> None:
    for file, words in TESTS_BY_FAILURE[failure]:
        assert words in (ROOT / file).read_text(encoding="utf-8"), f"{failure}: {file} no longer contains {words!r}"


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A device with more memory than the test allocates."""
    directory = tmp_path / "gpu"
    manage.create(directory, "v100", 1, memory_bytes=64 * GIB)
    yield directory
    manage.destroy(directory)


def test_twenty_gib_do_not_fit_a_quota_of_one(large: Path, tmp_path: Path) -> None:
    """The device has the memory, and a tenant without a quota gets it: the quota refuses every kind of allocation."""
    quotas = LedgerFixture(large, tmp_path, GIB, 0)
    try:
        tenant, free = quotas.start(0), quotas.start(1)
        pools = [process.do("pool_make", exportable=False) for process in (tenant, free)]
        modes = (
            ("pool_alloc", pools[0], 20 * GIB),
            ("alloc_async", 20 * GIB),
            ("alloc", 20 * GIB),
            ("create", 20 * GIB),
        )
        assert [tenant.code(*mode) for mode in modes] == [FULL] * len(modes)
        assert tenant.code("launch", tenant.do("graph", 20 * GIB)) == FULL
        assert quotas.truth(0, "memory_peak_bytes") == 0
        free.do("pool_alloc", pools[1], 20 * GIB)
        assert quotas.truth(1) == 20 * GIB
        tenant.do("pool_alloc", pools[0], GIB // 2)  # and within it the pool works
        assert quotas.held(0) == quotas.truth(0) == GIB // 2
    finally:
        quotas.close()


def test_memory_of_a_tenant_is_unaffected_by_departures(softgpu: Path, tmp_path: Path) -> None:
    quotas = LedgerFixture(softgpu, tmp_path, 4 * MIB, 4 * MIB, 4 * MIB)
    try:
        processes = [quotas.start(slot) for slot in range(3)]
        allocations = [process.do("alloc", 3 * MIB) for process in processes]
        last = processes[2]
        for slot in (1, 0):  # earlier tenants leave, and others get their slots
            processes[slot].kill()
            quotas.bury()
            quotas.ledgers.grant(0, slot, GENERATION + 1)
            assert [quotas.held(slot), quotas.held(2)] == [0, 3 * MIB]
            assert quotas.truth(2) == 3 * MIB
            assert last.code("alloc", 2 * MIB) == FULL
        assert [line.pid for line in quotas.lines(2)] == [last.process.pid]
        last.do("free", allocations[2])
        assert quotas.held(2) == quotas.truth(2) == 0
        last.do("alloc", 4 * MIB)
        assert quotas.held(2) == quotas.truth(2) == 4 * MIB
    finally:
        quotas.close()


# -- stopped processes: no event reports them, and nothing may wait for them -----------------------------------------


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        pause(0.0005)


def test_stopped_process_blocks_no_allocation_of_others(softgpu: Path, tmp_path: Path) -> None:
    """Others are a process of the same tenant, with enough quota for both, and one of another tenant."""
    quotas = LedgerFixture(softgpu, tmp_path, 20 * MIB, 20 * MIB)
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
def test_stopped_tenant_blocks_no_launch_of_others(policy: GatePolicy, softgpu: Path, tmp_path: Path) -> None:
    """At higher or lower priority, with work on the device, a claim on the arbitration page or a waiting host call."""
    tenants = TwoTenants(softgpu, tmp_path)
    try:
        tenants.gate.policy = policy
        tenants.gate.set_entries()
        processes = {slot: tenants.start(slot, "spins.py", "100000000") for slot in (ONLINE, OFFLINE)}
        rng = random.Random(7)
        while not tenants.count(ONLINE, "sequence"):
            pause(0.01)
        for number in range(STOPS):
            stopped_slot, other = (ONLINE, OFFLINE) if number % 2 else (OFFLINE, ONLINE)
            pause(rng.random() * 0.01)
            stop(processes[stopped_slot].pid)
            before = tenants.count(other, "sequence")
            while tenants.count(other, "sequence") < before + 3:
                assert processes[other].poll() is None
                pause(0.0005)
            os.kill(processes[stopped_slot].pid, signal.SIGCONT)
        assert tenants.count(ONLINE, "waits") == 0
    finally:
        tenants.close()
