"""The examples run as a user would run them, and the device's counters agree with their output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.softgpu import manage

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def run_example(directory: Path, *command: str) -> dict[str, float]:
    done = subprocess.run(
        command, env={**os.environ, **manage.env(directory)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("mode", ["online", "training"])
def test_replay_in_python(softgpu: Path, tmp_path: Path, mode: str) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    script_file = tmp_path / "launches.txt"
    script_file.write_text("# a request\nconv 80 256 30000 0\nnorm 20 128 5000 10000\n")
    script = str(EXAMPLES / "replay.py")
    answer = run_example(
        softgpu, sys.executable, script, "--mode", mode, "--seconds", "0.5", "--script", str(script_file), "--json"
    )
    assert answer["count"] > 0
    assert answer["kernels"] == 2 * answer["count"]
    assert answer["p50_us"] <= answer["p99_us"]
    assert manage.inspect(softgpu, 0)["counters"]["kernels"] == answer["kernels"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("mode", ["online", "training"])
def test_replay_in_c(softgpu: Path, tmp_path: Path, mode: str) -> None:
    program = tmp_path / "replay"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["cc", *flags, "-o", str(program), str(EXAMPLES / "replay.c"), "-ldl", "-lm"], check=True, timeout=60
    )
    answer = run_example(softgpu, str(program), mode, "--seconds", "0.5", "--json")
    assert answer["count"] > 0
    assert answer["kernels"] == 20 * answer["count"]
    assert manage.inspect(softgpu, 0)["counters"]["kernels"] == answer["kernels"]
