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

REQUESTS = 400
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


def read_line(player: subprocess.Popen[str]) -> str:
    assert player.stdout is not None
    return player.stdout.readline().strip()


def send_text(player: subprocess.Popen[str], text: str) -> None:
    assert player.stdin is not None
    player.stdin.write(text)
    player.stdin.flush()


@pytest.mark.parametrize("arrival", [["back-to-back"], ["poisson", "--period-us", "50"], ["back-to-back", "--graph"]])
def test_counters_include_every_launch(gpu: Path, arrival: list[str]) -> None:
    player = start(gpu, SCRIPT, "--requests", "30", "--steered", "--detail", "--arrival", *arrival)
    word, pid = read_line(player).split()
    assert word == READY
    send_text(player, "go\n")
    summary: dict[str, Any] = json.loads(read_line(player))
    (client,) = manage.inspect(gpu, 0)["clients"]
    player.communicate(timeout=60)
    assert client["pid"] == int(pid)
    assert (client["counters"]["kernels"], client["counters"]["copies"]) == (60, 30)
    assert summary["requests"] == len(summary["detail"]) == 30
    assert summary["launches"] == (30 if "--graph" in arrival else 90)
    assert summary["latency_sum_ns"] == sum(end - due for due, _, end in summary["detail"])
    assert all(due <= begin < end for due, begin, end in summary["detail"])
    latency = summary["latency_ns"]
    assert 25_000 <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]


def test_requests_are_due_at_the_instants_of_a_file(gpu: Path) -> None:
    instants = [0, 1_000_000, 1_000_000, 1_500_000, 9_000_000]
    file = gpu.parent / "instants"
    file.write_text("".join(f"{at_ns}\n" for at_ns in instants))
    player = start(gpu, SCRIPT, "--detail", "--arrival", "instants", "--instants", str(file))
    summary: dict[str, Any] = json.loads(player.communicate(timeout=60)[0])
    dues = [due for due, _, _ in summary["detail"]]
    assert [due - dues[0] for due in dues] == instants


@pytest.mark.parametrize("text", ["", "2\n1\n", "-1\n", "soon\n", "1\n2\n"])
def test_invalid_instants_file_is_rejected(gpu: Path, text: str) -> None:
    file = gpu.parent / "instants"
    file.write_text(text)
    player = start(gpu, SCRIPT, "--requests", "3", "--arrival", "instants", "--instants", str(file))
    _, errors = player.communicate(timeout=60)
    assert player.returncode == 2
    assert errors.startswith("player: --instants: ")
    assert "Traceback" not in errors


def test_player_holds_its_memory_while_it_plays(gpu: Path) -> None:
    player = start(gpu, SCRIPT, "--steered", "--memory", str(3 << 30))
    read_line(player)
    (client,) = manage.inspect(gpu, 0)["clients"]
    assert 0 <= client["counters"]["memory_bytes"] - (3 << 30) < 1 << 20  # plus what the script's copies need
    assert player.communicate("go\n", timeout=60)[1] == ""
    too_much = start(gpu, SCRIPT, "--memory", str(1 << 40))
    assert "cuMemAlloc" in too_much.communicate(timeout=60)[1]
    assert too_much.returncode == 2


def test_training_runs_until_stopped(gpu: Path) -> None:
    player = start(gpu, SCRIPT, "--arrival", "training", "--steered")
    read_line(player)
    send_text(player, "go\n")
    while not manage.inspect(gpu, 0)["clients"][0]["counters"]["kernels"]:
        pass
    player.send_signal(signal.SIGTERM)
    summary = json.loads(read_line(player))
    player.communicate(timeout=60)
    assert player.returncode == 0
    assert summary["launches"] >= 3 * summary["requests"]


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("gemm 80 256\n", [], "script:1"),
        (SCRIPT, ["--arrival", "poisson"], "--period-us"),
        (SCRIPT, ["--image", "/nowhere"], "No such file"),
        (SCRIPT + "gemm 1 1 1\n", [], "script:4"),
    ],
)
def test_invalid_script_or_option_is_reported_in_one_line(
    gpu: Path, script: str, arguments: list[str], message: str
) -> None:
    _, errors = (player := start(gpu, script, *arguments)).communicate(timeout=60)
    assert player.returncode == 2
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_image_contains_each_kernel_name_once() -> None:
    assert image_for("# a\n a 1 1 1 1\n@htod 1 1\nb 1 1 1 1\na 1 1 1 1\n").count("kernel ") == 2
    assert quantile([], 0.5) == 0
    assert quantile([1, 2, 3, 4], 0.99) == 4


def launches_of(name: str, *durations_ns: int) -> tuple[Launch, ...]:
    return tuple(
        Launch(KernelIdentity(f"{name}{i}", (80, 1, 1), (1024, 1, 1)), duration_ns, 4000, 0, 64)
        for i, duration_ns in enumerate(durations_ns)
    )


def play_until_both_ran(harness: SharingHarness, mode: Mode, online: Workload, offline: Workload) -> SharingRun:
    """Return a run in which both players had a processor at the same time, within a few attempts."""
    runs = (harness.play(mode, online, offline) for _ in range(10))
    return next(run for run in runs if run.online_delayed_ns and run.offline_done_ns)


def test_counters_attribute_the_waits_of_a_pair(tmp_path: Path) -> None:
    online = Workload("light", launches_of("light", 10_000, 20_000, 15_000), requests=REQUESTS)
    offline = Workload("heavy", launches_of("heavy", *[300_000] * 20), TRAINING)
    with SharingHarness(tmp_path, devices=2) as harness:
        harness.set_policy(NodePolicy(delay="10%"))
        for load in (online, offline):
            harness.record(load)
        gated = [harness.play(mode, online, offline) for mode in ("cotenant slices", "cotenant mps")]
        as_tenant, apart = harness.play("through", online, None), harness.play("apart", online, offline)
        alone, sliced = harness.play("alone", online, None), play_until_both_ran(harness, "slices", online, offline)
        with_mps = play_until_both_ran(harness, "mps", online, offline)
        heavy = harness.play("offline alone", None, offline, 0.05)
    assert alone.requests == sliced.requests == with_mps.requests == REQUESTS
    assert alone.online_delayed_ns == 0 < min(sliced.online_delayed_ns, with_mps.online_delayed_ns)
    assert alone.offline_done_ns == 0 < min(sliced.offline_done_ns, with_mps.offline_done_ns)
    assert heavy.requests == 0 < heavy.offline_done_ns <= heavy.wall_ns + 300_000
    assert as_tenant.online_delayed_ns == apart.online_delayed_ns == 0
    assert [run.requests for run in (as_tenant, apart, *gated)] == [REQUESTS] * 4
    for run in (sliced, with_mps, heavy, apart, *gated):
        assert run.offline_done_ns % 300_000 == 0
        assert run.busy_ns <= run.wall_ns
