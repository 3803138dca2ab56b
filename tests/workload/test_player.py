"""The player launches what its script says, and the device's counters of two concurrent players are consistent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.harness.harness import NodePolicy, SharingHarness
from cotenant.harness.run import Mode, SharingRun
from cotenant.softgpu import manage
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Launch, Workload
from cotenant.workload.player import READY, image_for, quantile

pytestmark = pytest.mark.live

MET = 400
"""Requests during which another workload starts; enough on a busy machine."""
SCRIPT = "gemm 80 256 20000 3000 7\nrelu 40 128 5000 0 7\n@htod 4096 0 9\n"


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Path]:
    manage.create(tmp_path / "gpu", "v100", 1)
    yield tmp_path / "gpu"
    manage.destroy(tmp_path / "gpu")


def start(gpu: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    path = gpu.parent / "script"
    path.write_text(script)
    return subprocess.Popen(
        [sys.executable, "-m", "cotenant.workload.player", str(path), *arguments],
        env={**os.environ, **manage.env(gpu)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def heard(player: subprocess.Popen[str]) -> str:
    assert player.stdout is not None
    return player.stdout.readline().strip()


def received(player: subprocess.Popen[str], text: str) -> None:
    assert player.stdin is not None
    player.stdin.write(text)
    player.stdin.flush()


@pytest.mark.parametrize("arrival", [["back-to-back"], ["poisson", "--period-us", "50"], ["back-to-back", "--graph"]])
def test_counters_include_every_launch(gpu: Path, arrival: list[str]) -> None:
    player = start(gpu, SCRIPT, "--requests", "30", "--steered", "--detail", "--arrival", *arrival)
    word, pid = heard(player).split()
    assert word == READY
    received(player, "go\n")
    said: dict[str, Any] = json.loads(heard(player))
    (client,) = manage.inspect(gpu, 0)["clients"]
    player.communicate(timeout=60)
    assert client["pid"] == int(pid)
    assert (client["counters"]["kernels"], client["counters"]["copies"]) == (60, 30)
    assert said["requests"] == len(said["detail"]) == 30
    assert said["launches"] == (30 if "--graph" in arrival else 90)
    assert said["latency_sum_ns"] == sum(end - due for due, _, end in said["detail"])
    assert all(due <= begin < end for due, begin, end in said["detail"])
    latency = said["latency_ns"]
    assert 25_000 <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]


def test_requests_are_due_at_the_instants_of_a_file(gpu: Path) -> None:
    instants = [0, 1_000_000, 1_000_000, 1_500_000, 9_000_000]
    file = gpu.parent / "instants"
    file.write_text("".join(f"{at_ns}\n" for at_ns in instants))
    player = start(gpu, SCRIPT, "--detail", "--arrival", "instants", "--instants", str(file))
    said: dict[str, Any] = json.loads(player.communicate(timeout=60)[0])
    dues = [due for due, _, _ in said["detail"]]
    assert [due - dues[0] for due in dues] == instants


@pytest.mark.parametrize("text", ["", "2\n1\n", "-1\n", "soon\n", "1\n2\n"])
def test_a_file_without_the_instants_is_refused(gpu: Path, text: str) -> None:
    file = gpu.parent / "instants"
    file.write_text(text)
    player = start(gpu, SCRIPT, "--requests", "3", "--arrival", "instants", "--instants", str(file))
    _, complained = player.communicate(timeout=60)
    assert player.returncode == 2
    assert complained.startswith("player: --instants: ")
    assert "Traceback" not in complained


def test_memory_is_held_while_it_plays(gpu: Path) -> None:
    player = start(gpu, SCRIPT, "--steered", "--memory", str(3 << 30))
    heard(player)
    (client,) = manage.inspect(gpu, 0)["clients"]
    assert 0 <= client["counters"]["memory_bytes"] - (3 << 30) < 1 << 20  # plus what the script's copies need
    assert player.communicate("go\n", timeout=60)[1] == ""
    too_much = start(gpu, SCRIPT, "--memory", str(1 << 40))
    assert "cuMemAlloc" in too_much.communicate(timeout=60)[1]
    assert too_much.returncode == 2


def test_training_runs_until_stopped(gpu: Path) -> None:
    player = start(gpu, SCRIPT, "--arrival", "training", "--steered")
    heard(player)
    received(player, "go\n")
    while not manage.inspect(gpu, 0)["clients"][0]["counters"]["kernels"]:
        pass
    player.send_signal(signal.SIGTERM)
    said = json.loads(heard(player))
    player.communicate(timeout=60)
    assert player.returncode == 0
    assert said["launches"] >= 3 * said["requests"]


@pytest.mark.parametrize(
    "script, arguments, complaint",
    [
        ("gemm 80 256\n", [], "script:1"),
        (SCRIPT, ["--arrival", "poisson"], "--period-us"),
        (SCRIPT, ["--image", "/nowhere"], "No such file"),
        (SCRIPT + "gemm 1 1 1\n", [], "script:4"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(gpu: Path, script: str, arguments: list[str], complaint: str) -> None:
    _, complained = (player := start(gpu, script, *arguments)).communicate(timeout=60)
    assert player.returncode == 2
    assert complaint in complained
    assert len(complained.splitlines()) == 1


def test_an_image_has_each_name_once() -> None:
    assert image_for("# a\n a 1 1 1 1\n@htod 1 1\nb 1 1 1 1\na 1 1 1 1\n").count("kernel ") == 2
    assert quantile([], 0.5) == 0
    assert quantile([1, 2, 3, 4], 0.99) == 4


def made(name: str, *durations_ns: int) -> tuple[Launch, ...]:
    return tuple(
        Launch(KernelIdentity(f"{name}{i}", (80, 1, 1), (1024, 1, 1)), duration_ns, 4000, 0, 64)
        for i, duration_ns in enumerate(durations_ns)
    )


def met(harness: SharingHarness, mode: Mode, online: Workload, offline: Workload) -> SharingRun:
    """Return a run in which both players had a processor at the same time, within a few attempts."""
    runs = (harness.play(mode, online, offline) for _ in range(10))
    return next(run for run in runs if run.online_delayed_ns and run.offline_done_ns)


def test_counters_attribute_the_waits_of_a_pair(tmp_path: Path) -> None:
    online = Workload("light", made("light", 10_000, 20_000, 15_000), requests=MET)
    offline = Workload("heavy", made("heavy", *[300_000] * 20), TRAINING)
    with SharingHarness(tmp_path, devices=2) as harness:
        harness.set_policy(NodePolicy(delay="10%"))
        for load in (online, offline):
            harness.record(load)
        governed = [harness.play(mode, online, offline) for mode in ("cotenant slices", "cotenant mps")]
        through, apart = harness.play("through", online, None), harness.play("apart", online, offline)
        alone, beside = harness.play("alone", online, None), met(harness, "slices", online, offline)
        together = met(harness, "mps", online, offline)
        heavy = harness.play("offline alone", None, offline, 0.05)
    assert alone.requests == beside.requests == together.requests == MET
    assert alone.online_delayed_ns == 0 < min(beside.online_delayed_ns, together.online_delayed_ns)
    assert alone.offline_done_ns == 0 < min(beside.offline_done_ns, together.offline_done_ns)
    assert heavy.requests == 0 < heavy.offline_done_ns <= heavy.wall_ns + 300_000
    assert through.online_delayed_ns == apart.online_delayed_ns == 0
    assert [run.requests for run in (through, apart, *governed)] == [MET] * 4
    for run in (beside, together, heavy, apart, *governed):
        assert run.offline_done_ns % 300_000 == 0
        assert run.busy_ns <= run.wall_ns
