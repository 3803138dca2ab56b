"""Tenants killed while they launch, and the daemon meanwhile: does anybody else stall, does anything of them stay?"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.live.gate import path_of
from cotenant.policy.schedule import roster
from tests.e2e.stage import Stage, until
from tests.effort import examples
from tests.live.hooks import hook_before
from tests.live.softgpus import PROGRAMS

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(900)
KILLS = examples(16, 500)
"""How many tenants die; the longer run has 500."""
NODE_KILLS = max(2, KILLS // 50)
OPTIONS = ("--slots", "12", "--grace", "10s")  # who stays comes back in time, on a busy machine too
STAYING = {"above": ("--online",), "below": ("--offline", "--priority", "9")}
SLOTS = {name: slot for slot, name in enumerate(STAYING)}


@pytest.fixture
def gpu(stage: Stage) -> Iterator[Stage]:
    assert stage.run("softgpu", "create", "--gpu", "v100").returncode == 0
    yield stage
    stage.run("softgpu", "destroy")


def page(stage: Stage, name: str) -> dict[str, int | list[int]]:
    """From the file, as any other tenant would; also while there is no daemon."""
    data = path_of(stage.places.pages, 0).read_bytes()
    begin = roster.page_offset(SLOTS[name])
    return roster.read_page(data[begin : begin + roster.PAGE_BYTES])


def launches(stage: Stage, name: str) -> int:
    found = page(stage, name)["sequence"]
    assert isinstance(found, int)
    return found


def nobody_stalls(stage: Stage) -> None:
    """Both who stay go on launching."""
    before = {name: launches(stage, name) for name in STAYING}
    until(lambda: all(launches(stage, name) > count + 2 for name, count in before.items()))


def restart(stage: Stage) -> None:
    """Kill the daemon while others launch and die; nobody needs it to go on."""
    stage.kill_node()
    nobody_stalls(stage)
    stage.node(*OPTIONS)
    until(lambda: set(STAYING) <= set(stage.slots()))
    assert {name: stage.slots()[name] for name in STAYING} == {name: (slot, 1) for name, slot in SLOTS.items()}


def held(stage: Stage) -> int:
    """How often the daemon has the device's file open."""
    found = 0
    for entry in Path(f"/proc/{stage.node_pid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it had open for a moment
            found += entry.readlink() == path_of(stage.places.pages, 0)
    return found


def test_tenants_die_while_they_launch_and_so_does_the_daemon(gpu: Stage, tmp_path: Path) -> None:
    gpu.node(*OPTIONS)
    spins = ("--gpu", "soft:0", "--", sys.executable, str(PROGRAMS / "spins.py"), "100000000")
    staying = [gpu.tenant(name, *words, *spins) for name, words in STAYING.items()]
    assert gpu.slots() == {name: (slot, 1) for name, slot in SLOTS.items()}
    nobody_stalls(gpu)
    hook = hook_before(gpu.places.runtime / "softgpu", tmp_path / "hook")
    environ = {**gpu.environ, **hook.environ("shim")}
    command = [sys.executable, str(PROGRAMS / "mortals.py"), str(gpu.places.socket), str(KILLS), "6"]
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
    seats = roster.read_roster(path_of(gpu.places.pages, 0).read_bytes()).seats
    assert [(seat.slot, seat.generation) for seat in seats] == [(slot, 1) for slot in SLOTS.values()]
    nobody_stalls(gpu)
    assert (page(gpu, "above")["waits"], page(gpu, "below")["stale"]) == (0, 0)
    until(lambda: held(gpu) == 3)  # to read, to write, and the mapping's
    until(
        lambda: len(gpu.json("softgpu", "inspect", "0")["clients"]) == len(STAYING)
    )  # the device has no others either
    assert list(hook.records.iterdir()) == []
