"""Tenants continue while the daemon is dead or stopped, and end properly once it is back."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.node.client.commands import evict, set_priority
from cotenant.node.model.action import KillTenant, RestoreTenant, SignalTenant
from cotenant.softgpu import manage
from cotenant.softgpu.commands import home
from cotenant.softgpu.fault import set_clock
from tests.support.node_processes import BOUND_S, NodeHarness, until
from tests.support.software_gpus import PROGRAMS

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

OPTIONS = (
    "--watch-period",
    "100ms",
    "--make-room",
    "12s",
    "--gate",
    "strict",
    "--reconnect-grace",
    "20s",
    "--drain",
    "20s",
)
"""Times so long that each phase ends by its event and never by its deadline, even on a busy machine."""
MEMORY_HOLDER = (sys.executable, str(PROGRAMS / "memory_holder.py"))
SPINS = (sys.executable, str(PROGRAMS / "spins.py"), "100000000")
# One kernel of so many seconds; then it waits for it, and for SIGTERM, which it survives if it is stubborn.
LONG = """
import signal, sys, time
from pathlib import Path
from cuda.bindings import driver
from cuda_helpers import Gpu, ok
stubborn = sys.argv[3:] == ["stubborn"]
signal.signal(signal.SIGTERM, lambda number, frame: Path(sys.argv[1] + ".asked").touch() if stubborn else sys.exit(5))
gpu = Gpu()
gpu.spin(int(float(sys.argv[2]) * 1e9), blocks=1)
Path(sys.argv[1]).touch()
while True:
    time.sleep(0.02)
"""


class HarnessWithGpu(NodeHarness):
    """One software GPU for all tests of this file, and the turns that were there before the one that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_turns = 0

    def begin(self, name: str, *words: str) -> tuple[subprocess.Popen[str], Path]:
        """Start a tenant and wait until its program has reported by a file that it is ready."""
        lines_seen = self.home / name
        lines_seen.unlink(missing_ok=True)
        run = self.tenant(name, "--gpu", "soft:0", *(word.replace("SAID", str(lines_seen)) for word in words))
        until(lambda: lines_seen.exists() or run.poll() is not None)
        assert run.poll() is None, run.communicate()
        return run, lines_seen

    def restart(self) -> None:
        """Kill the node and start another; its tenants come back."""
        before = self.slots()
        self.kill_node()
        self.node(*OPTIONS)
        until(lambda: self.slots() == before)

    def stage_of(self, name: str) -> str:
        tenant_list = self.tenant_list()
        found = [] if tenant_list is None else [view.tenant for view in tenant_list.tenants if view.tenant.name == name]
        return found[0].lifecycle.phase.value if found else "gone"

    def actions(self) -> list[str]:
        """Return the actions on programs, in order."""
        actions = [action for turn in self.journal()[self.seen_turns :] for action in turn.actions]
        return [
            action.kind if isinstance(action, SignalTenant) else type(action).__name__
            for action in actions
            if isinstance(action, (SignalTenant, KillTenant, RestoreTenant))
        ]

    def launches(self, name: str) -> int:
        """Return the launches of a tenant's program that the device has seen; this needs no daemon."""
        clients = manage.inspect(home(self.directories), 0)["clients"]
        return sum(int(client["counters"]["kernels"]) for client in clients if client["account"] == name)


@pytest.fixture(scope="module")
def harness() -> Iterator[HarnessWithGpu]:
    with HarnessWithGpu() as node_harness:
        assert node_harness.run("softgpu", "create", "--gpu", "v100", "--memory", "1GiB").returncode == 0
        node_harness.environ["PYTHONPATH"] = str(PROGRAMS)
        node_harness.node(*OPTIONS)
        yield node_harness
        node_harness.run("softgpu", "destroy")


@pytest.fixture
def gpu(harness: HarnessWithGpu) -> Iterator[HarnessWithGpu]:
    harness.seen_turns = len(harness.journal())
    yield harness
    until(lambda: not harness.names())


def long_one(seconds: float, *words: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", LONG, "SAID", str(seconds), *words)


def test_priority_applies_to_the_next_launch_without_the_daemon(gpu: HarnessWithGpu) -> None:
    """Elsewhere it acts when a daemon next makes its round, seconds later; here the daemon does not even run."""

    def start(name: str, *options: str) -> subprocess.Popen[str]:
        environ = {**gpu.environ, "SOFTGPU_ACCOUNT": name}
        return gpu.tenant(name, "--gpu", "soft:0", *options, "--", *SPINS, env=environ)

    above = start("above", "--online", "--priority", "3")
    below = start("below", "--priority", "6")

    def goes_on(name: str, by: int = 8) -> None:
        before = gpu.launches(name)
        until(lambda: gpu.launches(name) >= before + by)

    def waits(name: str, while_other: str) -> bool:
        """Under strict rules nothing passes while the other, which is above, goes on."""
        before = gpu.launches(name)
        goes_on(while_other, 40)
        return gpu.launches(name) - before <= 4

    goes_on("above")
    until(lambda: "waits at the gate" in gpu.run("explain", "below").stdout)  # its program has attached
    assert waits("below", "above")
    for first, second, priority in (("below", "above", 1), ("above", "below", 9)):
        set_priority(gpu.directories, "below", priority)
        pid = gpu.node_pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        goes_on(first)
        while not waits(second, first):
            continue
        os.kill(pid, signal.SIGCONT)
    for run in (above, below):
        run.kill()
        run.wait(BOUND_S)


def test_daemon_dies_while_a_tenant_drains(gpu: HarnessWithGpu) -> None:
    set_clock(home(gpu.directories), 0, 0.1)  # what it launched lasts until the clock is as it was
    run, _ = gpu.begin("a", *long_one(1.5))
    assert evict(gpu.directories, ["a"], None).tenants == ["a"]
    assert gpu.stage_of("a") == "draining"
    gpu.restart()
    set_clock(home(gpu.directories), 0, 1)
    assert run.wait(BOUND_S) == 5
    assert gpu.actions() == ["term"], "asked to end once, and never killed"
    until(lambda: gpu.endings().get("a") == "exit 5")


def test_daemon_dies_while_a_program_ends(gpu: HarnessWithGpu) -> None:
    """The next node continues the phase; asked to hurry, it kills a program that does not exit."""
    run, lines_seen = gpu.begin("a", "--grace", "1h", *long_one(0.001, "stubborn"))
    assert evict(gpu.directories, ["a"], None).tenants == ["a"]
    until(lines_seen.with_suffix(".asked").exists)
    assert gpu.stage_of("a") == "terminating"
    gpu.restart()
    assert gpu.stage_of("a") == "terminating"
    evict(gpu.directories, ["a"], "1ms")
    assert run.wait(BOUND_S) == 137
    assert gpu.actions() == ["term", "term", "kill"], "the request is repeated, because the first one may be lost"
    until(lambda: gpu.endings().get("a") == "killed by SIGKILL")


def test_daemon_dies_while_a_program_is_suspended(gpu: HarnessWithGpu) -> None:
    offline, _ = gpu.begin(
        "off", "--memory", "700MiB", "--on-pressure", "suspend", "--", *MEMORY_HOLDER, "SAID", "100000"
    )
    online, _ = gpu.begin("on", "--online", "--memory", "600MiB", "--", *MEMORY_HOLDER, "SAID", "100000")
    assert gpu.stage_of("off") == "suspended"
    gpu.restart()
    assert gpu.stage_of("off") == "suspended", "the online tenant still holds the memory"
    online.send_signal(signal.SIGTERM)
    assert online.wait(BOUND_S) == 5
    until(lambda: gpu.stage_of("off") == "running")
    seen = int((gpu.home / "off").read_text())
    until(lambda: int((gpu.home / "off").read_text()) > seen)  # it asserts itself that nothing of its memory is lost
    offline.send_signal(signal.SIGTERM)
    assert offline.wait(BOUND_S) == 5
    assert gpu.actions() == ["term", "RestoreTenant", "term"]
