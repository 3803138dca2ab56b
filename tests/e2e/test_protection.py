"""Do node, parent and driver end, evict, suspend and restore a program on a software GPU together?"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.domain.action import Action, Restore, Revoke, Signal, Suspend
from tests.e2e.stage import BOUND_S, Stage, until
from tests.live.softgpus import PROGRAMS

KEEPER = (sys.executable, str(PROGRAMS / "keeper.py"))
WORDS = "100000"


class Scene(Stage):
    """One software GPU and one node for all tests of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_turns = 0
        self.runs: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as stage:
        assert stage.run("softgpu", "create", "--gpu", "v100", "--memory", "1GiB").returncode == 0
        # Short, but not too short for a busy machine: what is aside stays there as long as others have to make room.
        stage.node("--watch-period", "100ms", "--make-room", "8s")
        yield stage
        stage.run("softgpu", "destroy")


@pytest.fixture
def gpu(scene: Scene) -> Iterator[Scene]:
    scene.seen_turns = len(scene.journal())
    yield scene
    for run in scene.runs:  # of a test that failed
        run.kill()
    until(lambda: not scene.names())


def keep(stage: Scene, name: str, *options: str) -> subprocess.Popen[str]:
    """A program that watches over its device memory, once it has some."""
    told = stage.home / name
    told.unlink(missing_ok=True)
    run = stage.start("run", "--gpu", "soft:0", "--name", name, *options, "--", *KEEPER, str(told), WORDS)
    stage.runs.append(run)
    until(lambda: told.exists() or run.poll() is not None)
    assert run.poll() is None, run.communicate()
    return run


def looks(stage: Stage, name: str) -> int:
    return int((stage.home / name).read_text())


def goes_on(stage: Stage, name: str) -> None:
    seen = looks(stage, name)
    until(lambda: looks(stage, name) > seen)


def deeds(stage: Scene, *kinds: type[Action]) -> list[Action]:
    return [
        action for turn in stage.journal()[stage.seen_turns :] for action in turn.actions if isinstance(action, kinds)
    ]


def signals(stage: Scene) -> list[str]:
    return [deed.kind for deed in deeds(stage, Signal) if isinstance(deed, Signal)]


def standing(stage: Stage, name: str) -> str:
    roll = stage.roll()
    found = [] if roll is None else [view.tenant for view in roll.tenants if view.tenant.name == name]
    return found[0].standing.stage.value if found else "gone"


def test_a_suspended_program_finds_its_memory_as_it_was(gpu: Scene) -> None:
    offline = keep(gpu, "off", "--memory", "700MiB", "--on-pressure", "suspend")
    online = keep(gpu, "on", "--online", "--memory", "600MiB")
    assert standing(gpu, "off") == "suspended"
    parked = [client["parked_bytes"] for client in gpu.json("softgpu", "inspect", "0")["clients"]]
    assert min(parked) == 0 < max(parked), "one of the two has its memory on the host"
    goes_on(gpu, "on")
    assert gpu.run("evict", "on").stdout == "on their way out: on\n"
    assert online.wait(BOUND_S) == 5
    goes_on(gpu, "off")  # it asserts itself that nothing is lost
    offline.send_signal(signal.SIGTERM)
    assert offline.wait(BOUND_S) == 5
    assert [type(deed) for deed in deeds(gpu, Suspend, Restore)] == [Suspend, Restore]
    assert signals(gpu) == ["term", "term"]


def test_a_suspended_program_can_be_ended(gpu: Scene) -> None:
    offline = keep(gpu, "off", "--memory", "700MiB", "--on-pressure", "suspend", "--grace", "200ms")
    online = keep(gpu, "on", "--online", "--memory", "600MiB")
    assert standing(gpu, "off") == "suspended"
    offline.send_signal(signal.SIGTERM)
    offline.wait(BOUND_S)
    until(lambda: gpu.names() == ["on"])
    goes_on(gpu, "on")
    online.send_signal(signal.SIGTERM)
    assert online.wait(BOUND_S) == 5


def test_an_evicted_program_comes_back_when_there_is_room(gpu: Scene) -> None:
    again = ("--restart", "on-failure", "--restart-delay", "50ms")
    offline = keep(gpu, "off", "--memory", "700MiB", *again)
    first = gpu.slots()["off"]
    online = keep(gpu, "on", "--online", "--memory", "600MiB")
    assert "off" not in gpu.names()
    (gpu.home / "off").unlink()
    online.send_signal(signal.SIGTERM)
    assert online.wait(BOUND_S) == 5
    until((gpu.home / "off").exists)
    assert gpu.slots()["off"] != first, "it is another tenancy"
    assert gpu.json("evict", "off") == {"tenants": ["off"]}
    _, said = offline.communicate(timeout=BOUND_S)
    assert offline.returncode == 5
    assert said.index("needs 600MiB") < said.index("waiting for it") < said.index("asked for it"), said


def test_a_program_that_ignores_the_request_is_killed_after_its_grace(gpu: Scene) -> None:
    ready = gpu.home / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 600; done"
    run = gpu.tenant("a", "--grace", "100ms", "--", "sh", "-c", script)
    until(ready.exists)
    run.send_signal(signal.SIGTERM)
    assert run.wait(BOUND_S) == 137
    assert signals(gpu) == ["term", "kill"]
    [revoke] = until(lambda: deeds(gpu, Revoke))  # a node that is slow to say farewell is not waited for
    assert isinstance(revoke, Revoke)
    assert revoke.ending == "killed by SIGKILL"


def test_a_paused_program_ends_all_the_same(gpu: Scene) -> None:
    spins = (sys.executable, str(PROGRAMS / "spins.py"), "100000")
    run = gpu.tenant("a", "--gpu", "soft:0", "--", *spins)
    until(lambda: gpu.json("softgpu", "inspect", "0")["clients"])
    gpu.run("pause", "a")
    gpu.run("evict", "a")
    assert run.wait(BOUND_S) == 143
    assert signals(gpu) == ["term"]


def test_nobody_can_be_evicted_who_is_not_there(gpu: Scene) -> None:
    done = gpu.run("evict", "nobody")
    assert done.returncode == 2
    assert "'nobody'" in done.stderr


def test_hami_s_variables_are_a_tenant_s_terms(gpu: Scene) -> None:
    environ = {**gpu.environ, "CUDA_DEVICE_MEMORY_LIMIT_0": "512m", "CUDA_DEVICE_SM_LIMIT": "30"}
    terms = ("--", sys.executable, "-m", "cotenant", "terms", "--json")
    done = gpu.run("run", *terms, env=environ)
    found = json.loads(done.stdout)
    assert (found["memory_bytes"], found["share_ppm"]) == (512 << 20, 300_000)
    assert "memory 512MiB by CUDA_DEVICE_MEMORY_LIMIT_0" in done.stderr
    done = gpu.run("run", "--memory", "1MiB", *terms, env=environ)
    assert json.loads(done.stdout)["memory_bytes"] == 1 << 20
    assert "CUDA_DEVICE_MEMORY_LIMIT_0 is set too: --memory 1MiB holds" in done.stderr


def test_what_is_left_on_the_gpu_by_a_program_that_ended_is_ended(gpu: Scene) -> None:
    told = gpu.home / "left"
    script = f"{' '.join(KEEPER)} {told} {WORDS} & while [ ! -e {told} ]; do sleep 0.05; done"
    done = gpu.run("run", "--gpu", "soft:0", "--name", "a", "--", "sh", "-c", script)
    assert done.returncode == 0
    assert "left 1 of its processes on the GPU" in done.stderr
    until(lambda: not gpu.json("softgpu", "inspect", "0")["clients"])
    assert Path(told).exists()
