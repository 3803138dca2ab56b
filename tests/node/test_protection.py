"""Node, parent and driver together end, evict, suspend and restore a program on a software GPU."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.node.model.action import Action, RestoreTenant, Revoke, SignalTenant, SuspendTenant
from tests.support.node_processes import BOUND_S, NodeHarness, until
from tests.support.software_gpus import PROGRAMS

pytestmark = pytest.mark.live

MEMORY_HOLDER = (sys.executable, str(PROGRAMS / "memory_holder.py"))
WORDS = "100000"


class HarnessWithGpu(NodeHarness):
    """One software GPU and one node for all tests of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_turns = 0
        self.runs: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module")
def harness() -> Iterator[HarnessWithGpu]:
    with HarnessWithGpu() as node_harness:
        assert node_harness.run("softgpu", "create", "--gpu", "v100", "--memory", "1GiB").returncode == 0
        # Short, but not too short for a busy machine: a suspended tenant stays so for at least the time of --make-room.
        node_harness.node("--watch-period", "100ms", "--make-room", "12s")
        yield node_harness
        node_harness.run("softgpu", "destroy")


@pytest.fixture
def gpu(harness: HarnessWithGpu) -> Iterator[HarnessWithGpu]:
    harness.seen_turns = len(harness.journal())
    yield harness
    for run in harness.runs:  # of a test that failed
        run.kill()
    until(lambda: not harness.names())


def run_memory_holder(node_harness: HarnessWithGpu, name: str, *options: str) -> subprocess.Popen[str]:
    """Start a program that allocates device memory and checks its content; return when it has allocated."""
    checks = node_harness.home / name
    checks.unlink(missing_ok=True)
    run = node_harness.start(
        "run", "--gpu", "soft:0", "--name", name, *options, "--", *MEMORY_HOLDER, str(checks), WORDS
    )
    node_harness.runs.append(run)
    until(lambda: checks.exists() or run.poll() is not None)
    assert run.poll() is None, run.communicate()
    return run


def check_count(node_harness: NodeHarness, name: str) -> int:
    return int((node_harness.home / name).read_text())


def assert_progress(node_harness: NodeHarness, name: str) -> None:
    before = check_count(node_harness, name)
    until(lambda: check_count(node_harness, name) > before)


def actions_of(node_harness: HarnessWithGpu, *kinds: type[Action]) -> list[Action]:
    return [
        action
        for turn in node_harness.journal()[node_harness.seen_turns :]
        for action in turn.actions
        if isinstance(action, kinds)
    ]


def signals(node_harness: HarnessWithGpu) -> list[str]:
    return [action.kind for action in actions_of(node_harness, SignalTenant) if isinstance(action, SignalTenant)]


def lifecycle(node_harness: NodeHarness, name: str) -> str:
    tenant_list = node_harness.tenant_list()
    tenants = [] if tenant_list is None else [view.tenant for view in tenant_list.tenants if view.tenant.name == name]
    return tenants[0].lifecycle.phase.value if tenants else "gone"


def test_suspended_program_keeps_its_memory(gpu: HarnessWithGpu) -> None:
    offline = run_memory_holder(gpu, "off", "--memory", "700MiB", "--on-pressure", "suspend")
    online = run_memory_holder(gpu, "on", "--online", "--memory", "600MiB")
    assert lifecycle(gpu, "off") == "suspended"
    parked = [client["parked_bytes"] for client in gpu.json("softgpu", "inspect", "0")["clients"]]
    assert min(parked) == 0 < max(parked), "one of the two has its memory on the host"
    assert_progress(gpu, "on")
    assert gpu.run("evict", "on").stdout == "evicting: on\n"
    assert online.wait(BOUND_S) == 5
    assert_progress(gpu, "off")  # it asserts itself that nothing is lost
    offline.send_signal(signal.SIGTERM)
    assert offline.wait(BOUND_S) == 5
    assert [type(action) for action in actions_of(gpu, SuspendTenant, RestoreTenant)] == [SuspendTenant, RestoreTenant]
    assert signals(gpu) == ["term", "term"]


def test_suspended_program_can_be_ended(gpu: HarnessWithGpu) -> None:
    offline = run_memory_holder(gpu, "off", "--memory", "700MiB", "--on-pressure", "suspend", "--grace", "200ms")
    online = run_memory_holder(gpu, "on", "--online", "--memory", "600MiB")
    assert lifecycle(gpu, "off") == "suspended"
    offline.send_signal(signal.SIGTERM)
    offline.wait(BOUND_S)
    until(lambda: gpu.names() == ["on"])
    assert_progress(gpu, "on")
    online.send_signal(signal.SIGTERM)
    assert online.wait(BOUND_S) == 5


def test_evicted_program_returns_when_memory_is_free(gpu: HarnessWithGpu) -> None:
    again = ("--restart", "on-failure", "--restart-delay", "50ms")
    offline = run_memory_holder(gpu, "off", "--memory", "700MiB", *again)
    first = gpu.slots()["off"]
    online = run_memory_holder(gpu, "on", "--online", "--memory", "600MiB")
    assert "off" not in gpu.names()
    (gpu.home / "off").unlink()
    online.send_signal(signal.SIGTERM)
    assert online.wait(BOUND_S) == 5
    until((gpu.home / "off").exists)
    assert gpu.slots()["off"] != first, "it is another tenancy"
    assert gpu.json("evict", "off") == {"tenants": ["off"]}
    _, messages = offline.communicate(timeout=BOUND_S)
    assert offline.returncode == 5
    assert messages.index("needs 600MiB") < messages.index("retrying") < messages.index("requested it"), messages


def test_program_that_ignores_the_request_is_killed_after_the_grace(gpu: HarnessWithGpu) -> None:
    ready = gpu.home / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 600; done"
    run = gpu.tenant("a", "--grace", "100ms", "--", "sh", "-c", script)
    until(ready.exists)
    run.send_signal(signal.SIGTERM)
    assert run.wait(BOUND_S) == 137
    assert signals(gpu) == ["term", "kill"]
    [revoke] = until(lambda: actions_of(gpu, Revoke))  # a node that is slow to say farewell is not waited for
    assert isinstance(revoke, Revoke)
    assert revoke.ending == "killed by SIGKILL"


def test_paused_program_can_be_ended(gpu: HarnessWithGpu) -> None:
    spins = (sys.executable, str(PROGRAMS / "spins.py"), "100000")
    run = gpu.tenant("a", "--gpu", "soft:0", "--", *spins)
    until(lambda: gpu.json("softgpu", "inspect", "0")["clients"])
    gpu.run("pause", "a")
    gpu.run("evict", "a")
    assert run.wait(BOUND_S) == 143
    assert signals(gpu) == ["term"]


def test_unknown_tenant_cannot_be_evicted(gpu: HarnessWithGpu) -> None:
    done = gpu.run("evict", "nobody")
    assert done.returncode == 2
    assert "'nobody'" in done.stderr


def test_hami_variables_set_the_grant(gpu: HarnessWithGpu) -> None:
    environ = {**gpu.environ, "CUDA_DEVICE_MEMORY_LIMIT_0": "512m", "CUDA_DEVICE_SM_LIMIT": "30"}
    grant = ("--", sys.executable, "-m", "cotenant", "self", "--json")
    done = gpu.run("run", *grant, env=environ)
    granted = json.loads(done.stdout)
    assert (granted["memory_bytes"], granted["share_ppm"]) == (512 << 20, 300_000)
    assert "memory 512MiB by CUDA_DEVICE_MEMORY_LIMIT_0" in done.stderr
    done = gpu.run("run", "--memory", "1MiB", *grant, env=environ)
    assert json.loads(done.stdout)["memory_bytes"] == 1 << 20
    assert "CUDA_DEVICE_MEMORY_LIMIT_0 is set too: --memory 1MiB is used" in done.stderr


def test_processes_left_on_the_gpu_are_ended(gpu: HarnessWithGpu) -> None:
    checks = gpu.home / "left"
    script = f"{' '.join(MEMORY_HOLDER)} {checks} {WORDS} & while [ ! -e {checks} ]; do sleep 0.05; done"
    done = gpu.run("run", "--gpu", "soft:0", "--name", "a", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "left processes on the GPU, which are ended now: 1" in done.stderr
    until(lambda: not gpu.json("softgpu", "inspect", "0")["clients"])
    assert Path(checks).exists()
