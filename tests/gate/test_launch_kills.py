"""Kills of launching tenants and of the daemon stall no other tenant and leave nothing behind."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate.activity import DeviceSnapshot
from cotenant.node.client.connection import read_activity
from cotenant.softgpu import manage
from tests.support.effort import examples
from tests.support.hook_runs import hook_before
from tests.support.node_processes import BOUND_S, NodeHarness, until
from tests.support.software_gpus import PROGRAMS

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
KILLS = examples(16, 500)
"""How many tenants die; the longer run has 500."""
NODE_KILLS = max(2, KILLS // 50)
OPTIONS = ("--slots", "12", "--reconnect-grace", "10s")  # enough for tenants to reconnect, even on a busy machine
STAYING = {"above": ("--online",), "below": ("--offline", "--priority", "9")}
SLOTS = {name: slot for slot, name in enumerate(STAYING)}


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
    yield node_harness
    node_harness.run("softgpu", "destroy")


def gate(node_harness: NodeHarness) -> DeviceSnapshot:
    snapshot = read_activity(node_harness.directories).gpus[0].gate
    assert snapshot is not None
    return snapshot


def launches(node_harness: NodeHarness) -> dict[str, int]:
    """Return the launches of the remaining tenants that the device has seen; this needs no daemon."""
    clients = manage.inspect(node_harness.directories.runtime / "softgpu", 0)["clients"]
    counts = {client["account"]: client["counters"]["kernels"] for client in clients}
    return {name: counts.get(name, 0) for name in STAYING}


def assert_all_progress(node_harness: NodeHarness) -> None:
    """Wait until both remaining tenants have launched again."""
    before = launches(node_harness)
    until(lambda: all(count > before[name] + 2 for name, count in launches(node_harness).items()))


def restart(node_harness: NodeHarness) -> None:
    """Kill the daemon while other tenants launch and die; no tenant needs it to continue."""
    node_harness.kill_node()
    assert_all_progress(node_harness)
    node_harness.node(*OPTIONS)
    until(lambda: set(STAYING) <= set(node_harness.slots()))
    assert {name: node_harness.slots()[name] for name in STAYING} == {name: (slot, 1) for name, slot in SLOTS.items()}


def memory_files(node_harness: NodeHarness) -> Counter[str]:
    """Return how often the daemon has each memory file open."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{node_harness.node_pid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it had open for a moment
            link = str(entry.readlink())
            if link.startswith("/memfd:"):
                found[link.removeprefix("/memfd:").removesuffix(" (deleted)")] += 1
    return found


def test_kills_of_launching_tenants_and_of_the_daemon(gpu: NodeHarness, tmp_path: Path) -> None:
    gpu.node(*OPTIONS)
    spins = ("--gpu", "soft:0", "--", sys.executable, str(PROGRAMS / "spins.py"), "100000000")
    staying = [
        gpu.tenant(name, *words, *spins, env={**gpu.environ, "SOFTGPU_ACCOUNT": name})
        for name, words in STAYING.items()
    ]
    assert gpu.slots() == {name: (slot, 1) for name, slot in SLOTS.items()}
    assert_all_progress(gpu)
    hook = hook_before(gpu.directories.runtime / "softgpu", tmp_path / "hook")
    environ = {**gpu.environ, **hook.environ("shim")}
    command = [sys.executable, str(PROGRAMS / "killed_tenants.py"), str(gpu.directories.tenant_socket), str(KILLS), "6"]
    killed = launched = restarts = 0
    mortals = gpu.open(command, stderr=None, env=environ)
    for line in mortals.stdout or ():
        killed, launched = map(int, line.split())
        if killed % (KILLS // (NODE_KILLS + 1)) == 0 and restarts < NODE_KILLS:
            restarts += 1
            restart(gpu)
    assert (mortals.wait(BOUND_S), killed) == (0, KILLS)
    assert launched >= KILLS // 2
    assert [process.poll() for process in staying] == [None, None]
    until(lambda: sorted(gpu.names()) == sorted(STAYING))
    assert [(entry.slot, entry.generation) for entry in gate(gpu).rules.entries] == [
        (slot, 1) for slot in SLOTS.values()
    ]
    assert_all_progress(gpu)
    counts = gate(gpu).counts
    assert (counts[SLOTS["above"]].waits, counts[SLOTS["below"]].stale) == (0, 0)
    of_each = {"cotenant-table-0": 1, "cotenant-arbitration-0": 1, "cotenant-process": len(STAYING)}
    unused = (0, 1)  # the node may have created the page of the next tenant
    expected = [of_each | {"cotenant-grant": len(STAYING) + more} for more in unused]
    until(lambda: {name: count / 2 for name, count in memory_files(gpu).items()} in expected)  # a mapping has one too
    until(
        lambda: len(gpu.json("softgpu", "inspect", "0")["clients"]) == len(STAYING)
    )  # the device has no others either
    assert list(hook.records.iterdir()) == []
