"""Long kernels of an offline tenant are launched in parts next to an online one, and compute the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.runner.clock import monotonic_ns
from cotenant.softgpu import manage
from cotenant.units.instant import SECOND_NS
from tests.support.gate_files import OFFLINE, ONLINE, Gate
from tests.support.hook_runs import hook_before, run
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.ptx, pytest.mark.live, pytest.mark.timeout(600)]
PROGRAM = [sys.executable, str(PROGRAMS / "sliced_launches.py")]
ROUNDS, BLOCKS = 20, 8000
WAYS = 5
"""In how many ways the program launches, with two shapes in all; each is measured before it is cut."""


class Shared:
    """A device with an online and an offline tenant, whose programs it starts."""

    def __init__(self, softgpu: Path, home: Path) -> None:
        self.softgpu, self.cache = softgpu, home / "cache"
        self.cache.mkdir()
        self.gate = Gate()
        self._environments = []
        self._started: list[subprocess.Popen[str]] = []
        for slot in (ONLINE, OFFLINE):
            hooked = hook_before(softgpu, home / f"hook{slot}").environ("shim", sample=1)  # every launch may be timed
            environment = self.gate.environ(hooked, slot)
            self._environments.append({**environment, "COTENANT_CACHE": str(self.cache)})

    def start(self, slot: int, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            env=self._environments[slot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def hold(self, argument: str = "hold") -> subprocess.Popen[str]:
        holder = self.start(ONLINE, argument)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        until(lambda: self.gate.word(ONLINE, "sequence") > 100)
        return holder

    def await_more(self, word: str, more: int) -> None:
        """Wait until a word of the offline tenant's gate page has grown by more than this."""
        before = self.gate.word(OFFLINE, word)
        until(lambda: self.gate.word(OFFLINE, word) > before + more)

    def counters(self, process: subprocess.Popen[str]) -> Any:
        clients = manage.inspect(self.softgpu, 0)["clients"]
        (counters,) = [client["counters"] for client in clients if client["pid"] == process.pid]
        return counters

    def finish(self, process: subprocess.Popen[str]) -> tuple[str, Any]:
        """Return what the program prints, and the device's counters then."""
        assert process.stdout is not None
        line = process.stdout.readline()
        counters = self.counters(process) if line else None
        _, err = process.communicate("\n")
        assert process.returncode == 0, err
        return line, counters

    def alone(self, argument: str) -> str:
        """Return what the program prints without the hook."""
        done = run([*PROGRAM, argument], {**os.environ, **manage.env(self.softgpu)}, "\n")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.gate.close()


@pytest.fixture
def shared(softgpu: Path, tmp_path: Path) -> Iterator[Shared]:
    made = Shared(softgpu, tmp_path)
    yield made
    made.close()


def test_launches_arrive_in_parts_and_compute_the_same(shared: Shared) -> None:
    expected = shared.alone(str(ROUNDS))
    shared.hold()
    line, counters = shared.finish(shared.start(OFFLINE, str(ROUNDS)))
    cut, parts = shared.gate.word(OFFLINE, "cut_launches"), shared.gate.word(OFFLINE, "parts")
    assert line == expected
    assert cut >= ROUNDS - WAYS
    assert parts >= 4 * cut
    assert counters["kernels"] == parts + ROUNDS - cut
    assert counters["blocks"] - counters["copies"] - counters["memsets"] == ROUNDS * BLOCKS


@pytest.mark.parametrize("form", ["fat", "packed", "file", "linked"])
def test_kernels_of_fat_binaries_and_linked_code_arrive_in_parts(shared: Shared, form: str) -> None:
    """The results are those of the text itself, and the variants do not show in the lists of kernels."""
    expected = shared.alone(str(ROUNDS))
    shared.hold()
    line, counters = shared.finish(shared.start(OFFLINE, str(ROUNDS), form))
    cut, parts = shared.gate.word(OFFLINE, "cut_launches"), shared.gate.word(OFFLINE, "parts")
    assert line == expected
    assert cut >= ROUNDS - WAYS
    assert parts >= 4 * cut
    assert counters["kernels"] == parts + ROUNDS - cut


def test_kernels_are_whole_while_no_tenant_holds_the_device(shared: Shared) -> None:
    holder = shared.hold()
    holder.kill()
    holder.wait()
    shared.gate.set_entries(online=None)
    line, counters = shared.finish(shared.start(OFFLINE, str(ROUNDS)))
    assert line == shared.alone(str(ROUNDS))
    assert counters["kernels"] == ROUNDS
    assert shared.gate.word(OFFLINE, "parts") == 0


def test_kernels_are_whole_next_to_an_idle_tenant(shared: Shared) -> None:
    """Some of the launches that are timed run the variant, over the whole grid."""
    expected = shared.alone(str(ROUNDS))
    shared.hold("idle")
    until(lambda: shared.gate.word(ONLINE, "sequence") == 200)
    launched_ns = shared.gate.word(ONLINE, "at_ns")
    until(lambda: monotonic_ns() > launched_ns + 2 * SECOND_NS)
    line, counters = shared.finish(shared.start(OFFLINE, str(ROUNDS)))
    assert line == expected
    assert counters["kernels"] == ROUNDS
    assert shared.gate.word(OFFLINE, "parts") == 0


def test_online_tenants_load_their_own_text(shared: Shared) -> None:
    line, counters = shared.finish(shared.start(ONLINE, "5"))
    assert line == shared.alone("5")
    assert counters["kernels"] == 5
    assert not list(shared.cache.iterdir())


def test_a_pause_between_two_parts(shared: Shared) -> None:
    expected = shared.alone("60")
    shared.hold()
    program = shared.start(OFFLINE, "60")
    shared.await_more("parts", 30)
    for _ in range(3):
        shared.gate.set_entries(paused=True)
        until(lambda: shared.gate.word(OFFLINE, "wanted_ns"))  # it asks, and waits
        before = shared.gate.word(OFFLINE, "parts")
        shared.await_more("asked_ns", 0)
        assert shared.gate.word(OFFLINE, "parts") <= before + 1  # the one that had passed
        shared.gate.set_entries(paused=False)
        shared.await_more("parts", 5)
    line, counters = shared.finish(program)
    assert line == expected
    assert counters["kernels"] == shared.gate.word(OFFLINE, "parts") + 60 - shared.gate.word(OFFLINE, "cut_launches")


def test_a_program_killed_between_two_parts_starts_again(shared: Shared) -> None:
    holder = shared.hold()
    program = shared.start(OFFLINE, "1000")
    until(lambda: shared.gate.word(OFFLINE, "parts") > 30)
    program.kill()
    program.wait()
    launched = shared.gate.word(ONLINE, "sequence")
    until(lambda: shared.gate.word(ONLINE, "sequence") > launched + 100)
    assert holder.poll() is None
    assert shared.finish(shared.start(OFFLINE, str(ROUNDS)))[0] == shared.alone(str(ROUNDS))


def test_another_thread_sees_launches_that_are_whole(shared: Shared) -> None:
    shared.hold()
    line, _ = shared.finish(shared.start(OFFLINE, "threads"))
    assert line == "0 different\n"
    assert shared.gate.word(OFFLINE, "cut_launches") > 0


def test_captured_launches_are_whole(shared: Shared) -> None:
    expected = shared.alone("graph")
    shared.hold()
    line, counters = shared.finish(shared.start(OFFLINE, "graph"))
    cut, parts = shared.gate.word(OFFLINE, "cut_launches"), shared.gate.word(OFFLINE, "parts")
    assert line == expected
    assert cut <= 4
    assert counters["kernels"] == parts + 4 - cut + 5


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty", "directory"])
def test_a_damaged_file_of_the_cache_is_replaced(shared: Shared, damage: str) -> None:
    expected = shared.alone("5")
    assert shared.finish(shared.start(OFFLINE, "5"))[0] == expected
    (kept,) = (shared.cache / "ptx").iterdir()  # the module and the library have the same text
    content = kept.read_bytes()
    if damage == "directory":
        kept.unlink()
        kept.mkdir()
    else:
        changed = content[:-9] + b"x" + content[-8:]
        kept.write_bytes({"truncated": content[:-100], "changed": changed, "empty": b""}[damage])
    assert shared.finish(shared.start(OFFLINE, "5"))[0] == expected
    assert [path.name for path in (shared.cache / "ptx").iterdir()] == [kept.name]
    assert damage == "directory" or kept.read_bytes() == content


def test_a_tenant_of_a_node_is_explained_paused_evicted_and_started_again(node_harness: NodeHarness) -> None:
    """The same through a node, whose operator looks at the parts and ends the program between two of them."""
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0

    def tenant(name: str, kind: str, argument: str) -> subprocess.Popen[str]:
        options = ("run", kind, "--gpu", "soft:0", "--name", name, "--", *PROGRAM, argument)
        return node_harness.start(*options, stdin=subprocess.PIPE)

    def cause() -> Any:
        causes = node_harness.json("explain", "job", "--json")["causes"]
        return next((one for one in causes if one["kind"] == "parts"), None)

    try:
        web = tenant("web", "--online", "hold")
        until(lambda: "web" in node_harness.names())
        job = tenant("job", "--offline", "100000")
        until(lambda: "job" in node_harness.names())
        until(cause)
        assert "launched in parts: " in cause()["text"]
        assert node_harness.run("pause", "job").returncode == 0
        assert node_harness.run("resume", "job").returncode == 0
        before = cause()["text"]
        until(lambda: cause()["text"] != before)
        assert node_harness.run("evict", "job").returncode == 0
        job.communicate()
        assert job.returncode != 0
        assert web.poll() is None
        again = tenant("again", "--offline", str(ROUNDS))
        out, err = again.communicate("\n", timeout=300)
        assert again.returncode == 0, err
        alone = node_harness.start("run", "--online", "--gpu", "soft:0", "--name", "alone", "--", *PROGRAM, str(ROUNDS))
        assert alone.communicate()[0] == out
    finally:
        node_harness.run("softgpu", "destroy")
