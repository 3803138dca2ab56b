"""Short run of bench `goodput`, and consistency of its metrics."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]
FIGURES = ("goodput_vs_bound", "goodput_vs_default", "slo_attainment_admitted", "fairness", "goodput_hold")


def bench(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "cotenant_lab", "bench", "goodput", "--quick", "--json", *words]
    done = subprocess.run(command, capture_output=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(report: dict[str, Any], names: set[str]) -> None:
    assert {one["policy"] for one in report["cells"]} == names
    loads = {one["load"] for one in report["cells"]}
    assert len(report["cells"]) == len(names) * 2 * len(loads)
    for name in FIGURES:
        assert isinstance(report[name], float), name
        mine = [one[name] for one in report["policies"] if one["policy"] == report["ours"]]
        assert report[name] == min(mine)
    for one in report["cells"]:
        ended = one["in_time"] + one["late"] + one["refused"] + one["failed"] + one["given_up"]
        assert one["offered"] == ended, one
        assert one["failed"] == 0, one
        assert 0 <= one["slo_attainment_admitted"] <= 1
        assert (one["simulated_rps"] is None) == (one["policy"] == report["default"])
    assert sum(one["offered"] for one in report["cells"]) > 0  # a stalled machine may answer nothing in some of them
    together = [one["offered"] for one in report["cells"] if one["arrival"] == "poisson" and one["load"] == 2.0]
    assert len(set(together)) == 1  # every contender received the same requests
    defaults = [one for one in report["cells"] if one["policy"] == report["default"] and one["in_time"]]
    assert all(default["goodput_vs_default"] == 1.0 for default in defaults)
    for model in report["models"]:
        assert model["slo_ms"] == pytest.approx(3 * model["solo_p99_ms"], abs=0.01)


def test_bench_runs_on_the_cores_of_this_machine() -> None:
    check(bench("--only", "dstack"), {"dstack", "onnxruntime default"})
