"""`cotenant run` keeps the records of hooked programs and reports programs that the hook cannot see."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.profile.store import ProfileKey, ProfileStore
from cotenant.softgpu import manage
from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live

PROBE = ("--", sys.executable, "-m", "cotenant.softgpu.probe", "3", "10", "20000")


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    done = node_harness.run("softgpu", "create", "--gpu", "v100")
    assert done.returncode == 0, done.stderr
    yield node_harness
    node_harness.run("softgpu", "destroy")


def stored_profiles(node_harness: NodeHarness) -> list[Any]:
    return list(node_harness.json("profile", "list")["profiles"])


def hook_directories(node_harness: NodeHarness) -> list[Path]:
    return list((node_harness.directories.runtime / "hook").glob("*"))


def test_first_runs_are_measured_and_later_runs_sampled(gpu: NodeHarness) -> None:
    for _ in range(4):
        done = gpu.run("run", "--gpu", "soft:0", "--task", "probe", "--sample", "2", *PROBE)
        assert (done.returncode, len(json.loads(done.stdout)["launch_ns"])) == (0, 3), done.stderr
    [profile] = stored_profiles(gpu)
    assert (profile["task"], profile["runs"], profile["launches"]) == ("probe", 4, 4 * 33)
    store = ProfileStore(gpu.directories.state / "profiles.sqlite", print)
    spans = [recording.profile.span_ns > 0 for recording in store.recordings(ProfileKey("probe", profile["device"]))]
    assert spans == [True, True, True, False]
    # The kernel times are given to the next run of the task, and to no other.
    for task, expected in (("probe", "COTKNOW1"), ("another", "")):
        command = ("--task", task, "--", "sh", "-c", 'head -c 8 "$COTENANT_RECORD/kernel-times" 2>/dev/null || true')
        assert gpu.run("run", "--gpu", "soft:0", *command).stdout == expected
    assert hook_directories(gpu) == []


@pytest.mark.parametrize("mode", ["shim", "preload"])
def test_explicit_recording_reports_its_result(mode: str, gpu: NodeHarness) -> None:
    done = gpu.run("profile", "record", "--gpu", "soft:0", "--task", "probe", "--hook", mode, *PROBE)
    assert done.returncode == 0, done.stderr
    assert "probe: 1 kernel, 33 launches recorded, " in done.stderr
    assert "cotenant profile show probe" in done.stderr
    shown = gpu.json("profile", "show", "probe")
    [kernel] = shown["kernels"]
    # Where the host was held up between launch and mark, a time is only a bound, and need not be kept.
    assert (kernel["function"], kernel["launches"], 0 < kernel["timed"] <= 33) == ("probe", 33, True)
    assert shown["busy_ns"] > 0


def test_no_times_are_recorded_next_to_an_ungated_neighbour(gpu: NodeHarness) -> None:
    gpu.node("--gpu", "none")  # at a gate it would be seen that the neighbour launches nothing
    neighbour = gpu.start("run", "--name", "neighbour", "--", "cat", stdin=-1)
    until(lambda: "neighbour" in gpu.names())
    done = gpu.run("profile", "record", "--gpu", "soft:0", "--task", "probe", *PROBE)
    assert "33 launches recorded, 0 of them timed" in done.stderr
    assert "while no other tenant uses the device" in done.stderr
    neighbour.communicate("", timeout=60)
    done = gpu.run("profile", "record", "--gpu", "soft:0", "--task", "probe", *PROBE)
    assert "33 launches recorded, " in done.stderr
    assert " 0 of them timed" not in done.stderr


def test_program_without_gpu_work_is_unchanged(gpu: NodeHarness) -> None:
    done = gpu.run("run", "--gpu", "soft:0", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert stored_profiles(gpu) == []
    assert hook_directories(gpu) == []
    done = gpu.run("profile", "record", "--", "true")
    assert done.returncode == 0
    assert "no GPU work was recorded" in done.stderr


def test_without_the_hook_nothing_is_recorded(gpu: NodeHarness) -> None:
    done = gpu.run("run", "--hook", "off", "--gpu", "soft:0", *PROBE)
    assert (done.returncode, stored_profiles(gpu)) == (0, []), done.stderr


def test_tenant_that_escapes_the_hook_is_reported(gpu: NodeHarness) -> None:
    library = str(manage.library())
    code = (
        "import ctypes, os, sys, time\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
    )
    flag = gpu.home / "flag"
    options = ("--gpu", "soft:0", "--name", "past")
    program = gpu.start("run", *options, "--", sys.executable, "-c", code, library, str(flag))
    assert program.stderr is not None
    warning = next(line for line in program.stderr if "saw nothing" in line)  # reported while it runs
    assert f"uses {library}, and the hook saw nothing of it" in warning
    flag.touch()
    assert program.communicate(timeout=60)[1] == ""
    assert "the hook saw nothing of its GPU use" in gpu.run("ps", "--all").stdout


@pytest.mark.parametrize(
    "flag, value, about",
    [
        ("--hook", "magic", "how the hook is loaded"),
        ("--measure", "sometimes", "measure every kernel"),
        ("--sample", "-1", "measure one launch"),
        ("--unknown", "maybe", "the hook does not know"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(flag: str, value: str, about: str, node_harness: NodeHarness) -> None:
    done = node_harness.run("run", flag, value, "--", "true")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert about in done.stderr


def test_bench_prints_every_metric(node_harness: NodeHarness) -> None:
    results = node_harness.json("bench", "hook", "--rounds", "1")
    expected = {"plain_ns", "added_ns", "added_ns_alloc", "measuring_overhead_pct", "sampling_overhead_pct"}
    assert expected | {"added_instructions"} <= set(results)
