"""Hook, socket and pages work from other pid, mount and user namespaces."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate.activity import GateCounts
from cotenant.gate.ledger import LedgerSnapshot
from cotenant.node.client.connection import read_activity
from cotenant.node.model.tenant import Tenant
from tests.support.containers import Container
from tests.support.node_processes import NodeHarness, alive, until

pytestmark = pytest.mark.live

PROGRAMS = Path(__file__).parents[1] / "programs"
WORK = ("--", sys.executable, str(PROGRAMS / "tenant.py"))
HOOK_MODES = ("shim", "preload")
TAKEN = 7 << 20
"""The minimum device memory that the program holds, without its context."""


@pytest.fixture(scope="module")
def gpu() -> Iterator[NodeHarness]:
    """A node outside, with a software GPU."""
    with NodeHarness() as node_harness:
        assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
        node_harness.node()
        yield node_harness
        node_harness.run("softgpu", "destroy")


def tenant_of(node_harness: NodeHarness, name: str) -> Tenant:
    tenant_list = node_harness.tenant_list()
    assert tenant_list is not None
    [tenant] = [view.tenant for view in tenant_list.tenants if view.tenant.name == name]
    return tenant


def counts_of(node_harness: NodeHarness, name: str) -> GateCounts:
    """Return the counters of a tenant at the gate; all zero until one of its processes is attached."""
    snapshot = read_activity(node_harness.directories).gpus[0].gate
    assert snapshot is not None
    slot = tenant_of(node_harness, name).grant.slot
    return next(snapshot.counts_of(entry) for entry in snapshot.rules.entries if entry.slot == slot)


def launches(node_harness: NodeHarness, name: str) -> int:
    return counts_of(node_harness, name).launches


def ledger(node_harness: NodeHarness) -> LedgerSnapshot:
    snapshot = read_activity(node_harness.directories).gpus[0].ledger
    assert snapshot is not None
    return snapshot


def held(node_harness: NodeHarness, name: str) -> int:
    """Return the device memory that the tenant holds according to the ledger."""
    grant = tenant_of(node_harness, name).grant
    account = ledger(node_harness).accounts.get(grant.slot)
    return account.held_bytes if account is not None and account.generation == grant.generation else 0


def lines(node_harness: NodeHarness) -> int:
    """Return the number of processes in the ledger of the device."""
    return sum(len(account.lines) for account in ledger(node_harness).accounts.values())


def namespaces(pid: int) -> tuple[str, str]:
    return str(Path(f"/proc/{pid}/ns/pid").readlink()), str(Path(f"/proc/{pid}/ns/mnt").readlink())


@pytest.mark.parametrize("mode", HOOK_MODES)
def test_tenant_in_a_container_uses_the_gate_and_its_death_is_detected(mode: str, gpu: NodeHarness) -> None:
    inside, name = Container(gpu), f"boxed-{mode}"
    process = inside.start("run", "--gpu", "soft:0", "--hook", mode, "--name", name, *WORK)
    until(lambda: process.poll() is not None or name in gpu.names())
    assert process.poll() is None, process.communicate()
    until(lambda: process.poll() is not None or launches(gpu, name) > 100)
    until(lambda: held(gpu, name) >= TAKEN)
    pid = tenant_of(gpu, name).pid
    assert namespaces(pid)[0] != namespaces(os.getpid())[0]  # the kernel's word, in our numbers
    assert namespaces(pid)[1] != namespaces(os.getpid())[1]
    paused = gpu.run("pause", name)  # the page's rules reach it
    assert paused.returncode == 0
    until(lambda: counts_of(gpu, name).wanted_ns != 0)
    os.kill(pid, signal.SIGKILL)
    until(lambda: name in gpu.endings())
    assert gpu.endings()[name].startswith("lost")
    until(lambda: lines(gpu) == 0)  # of a process that the node counts otherwise
    process.wait()


def test_end_of_a_program_in_a_container_is_reported(gpu: NodeHarness) -> None:
    done = Container(gpu).run("run", "--gpu", "soft:0", "--name", "told", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr
    assert gpu.endings()["told"] == "exit 7"


def test_container_without_proc_runs(gpu: NodeHarness) -> None:
    """/proc shows the pids of outside: no process is taken for one of ours, and the tenant is at the gate."""
    inside = Container(gpu, proc=False)
    process = inside.start("run", "--gpu", "soft:0", "--name", "bare", *WORK, before="mount -t tmpfs none /proc")
    until(lambda: process.poll() is not None or ("bare" in gpu.names() and launches(gpu, "bare") > 100))
    assert process.poll() is None, process.communicate()
    seen = launches(gpu, "bare")
    until(lambda: launches(gpu, "bare") > seen + 1000)  # many looks later
    until(lambda: held(gpu, "bare") >= TAKEN)
    os.kill(tenant_of(gpu, "bare").pid, signal.SIGKILL)
    until(lambda: lines(gpu) == 0)


def test_program_without_the_node_directories_stays_at_the_gate(gpu: NodeHarness) -> None:
    """The directory of its records is gone: the socket and the libraries that are loaded suffice."""
    hide = f"mount -t tmpfs none {gpu.directories.runtime}/hook; exec {sys.executable} {PROGRAMS / 'tenant.py'}"
    words = ("unshare", "--mount", "sh", "-c", hide)
    Container(gpu)  # skips where namespaces are not permitted
    tenant = gpu.start("run", "--gpu", "soft:0", "--hook", "preload", "--name", "hidden", "--", *words)
    until(lambda: tenant.poll() is not None or ("hidden" in gpu.names() and launches(gpu, "hidden") > 100))
    assert tenant.poll() is None, tenant.communicate()
    tenant.kill()
    until(lambda: "hidden" not in gpu.names() and lines(gpu) == 0)


def test_user_namespace_maps_to_the_user_outside(gpu: NodeHarness) -> None:
    """Root inside is the creator of the namespace outside: the same user may connect."""
    inside = Container(gpu, "--user", "--map-root-user")
    done = inside.run("run", "--gpu", "soft:0", "--name", "mapped", "--", "sh", "-c", "id -u")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
    tenant_list = gpu.tenant_list()
    assert tenant_list is not None
    assert [gone.tenant.uid for gone in tenant_list.departed if gone.tenant.name == "mapped"] == [os.getuid()]


def test_run_directory_outside_is_not_removed_from_inside(gpu: NodeHarness) -> None:
    """Both see one directory, and neither the other's processes."""
    outside = gpu.tenant("outside", "--gpu", "soft:0", *WORK)
    kept = list((gpu.directories.runtime / "hook").glob("run-*"))
    assert len(kept) == 1
    done = Container(gpu).run("run", "--gpu", "soft:0", "--name", "swept", "--", "true")
    assert done.returncode == 0, done.stderr
    assert list((gpu.directories.runtime / "hook").glob("run-*")) == kept
    assert alive(outside.pid)
    outside.kill()
    outside.wait()
    assert gpu.run("run", "--gpu", "soft:0", "--", "true").returncode == 0
    assert list((gpu.directories.runtime / "hook").glob("run-*")) == []
