"""Kills of launching tenants and of the daemon stall no other tenant and leave nothing behind."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate import tenant_table
from cotenant.gate.gate_file import gate_path
from tests.support.effort import examples
from tests.support.hook_runs import hook_before
from tests.support.node_processes import NodeHarness, until
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


def page(node_harness: NodeHarness, name: str) -> dict[str, int | list[int]]:
    """From the file, as any other tenant would; also while there is no daemon."""
    data = gate_path(node_harness.directories.pages, 0).read_bytes()
    begin = tenant_table.page_offset(SLOTS[name])
    return tenant_table.read_page(data[begin : begin + tenant_table.PAGE_BYTES])


def launches(node_harness: NodeHarness, name: str) -> int:
    count = page(node_harness, name)["sequence"]
    assert isinstance(count, int)
    return count


def assert_all_progress(node_harness: NodeHarness) -> None:
    """Wait until both remaining tenants have launched again."""
    before = {name: launches(node_harness, name) for name in STAYING}
    until(lambda: all(launches(node_harness, name) > count + 2 for name, count in before.items()))


def restart(node_harness: NodeHarness) -> None:
    """Kill the daemon while other tenants launch and die; no tenant needs it to continue."""
    node_harness.kill_node()
    assert_all_progress(node_harness)
    node_harness.node(*OPTIONS)
    until(lambda: set(STAYING) <= set(node_harness.slots()))
    assert {name: node_harness.slots()[name] for name in STAYING} == {name: (slot, 1) for name, slot in SLOTS.items()}


def held(node_harness: NodeHarness) -> int:
    """How often the daemon has the device's file open."""
    found = 0
    for entry in Path(f"/proc/{node_harness.node_pid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it had open for a moment
            found += entry.readlink() == gate_path(node_harness.directories.pages, 0)
    return found


def test_kills_of_launching_tenants_and_of_the_daemon(gpu: NodeHarness, tmp_path: Path) -> None:
    gpu.node(*OPTIONS)
    spins = ("--gpu", "soft:0", "--", sys.executable, str(PROGRAMS / "spins.py"), "100000000")
    staying = [gpu.tenant(name, *words, *spins) for name, words in STAYING.items()]
    assert gpu.slots() == {name: (slot, 1) for name, slot in SLOTS.items()}
    assert_all_progress(gpu)
    hook = hook_before(gpu.directories.runtime / "softgpu", tmp_path / "hook")
    environ = {**gpu.environ, **hook.environ("shim")}
    command = [sys.executable, str(PROGRAMS / "killed_tenants.py"), str(gpu.directories.socket), str(KILLS), "6"]
    killed = launched = restarts = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as mortals:
        for line in mortals.stdout or ():
            killed, launched = map(int, line.split())
            if killed % (KILLS // (NODE_KILLS + 1)) == 0 and restarts < NODE_KILLS:
                restarts += 1
                restart(gpu)
    assert (mortals.returncode, killed) == (0, KILLS)
    assert launched >= KILLS // 2
    assert [process.poll() for process in staying] == [None, None]
    until(lambda: sorted(gpu.names()) == sorted(STAYING))
    entries = tenant_table.read_tenant_table(gate_path(gpu.directories.pages, 0).read_bytes()).entries
    assert [(entry.slot, entry.generation) for entry in entries] == [(slot, 1) for slot in SLOTS.values()]
    assert_all_progress(gpu)
    assert (page(gpu, "above")["waits"], page(gpu, "below")["stale"]) == (0, 0)
    until(lambda: held(gpu) == 3)  # to read, to write, and the mapping's
    until(
        lambda: len(gpu.json("softgpu", "inspect", "0")["clients"]) == len(STAYING)
    )  # the device has no others either
    assert list(hook.records.iterdir()) == []
