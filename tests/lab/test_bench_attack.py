"""Bench `attack`: its summary, its detection of a bypass, and the documentation of what is not contained."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cotenant_lab.bench.attack.attacks import ATTACKS
from cotenant_lab.bench.attack.bench import MODES, PHASES, AttackRun, summarize
from cotenant_lab.bench.attack.stalls import corrected, stalled_ns
from tests.support.node_processes import until

DOCS = Path(__file__).parents[2] / "docs"
QUIET = AttackRun(
    attack="leak",
    mode="slices",
    round=0,
    started=True,
    attempts=1,
    successes=0,
    ended="",
    requests=50,
    failed_requests=0,
    baseline_p99_ms=20.0,
    p99_ms=21.0,
    ratio=1.05,
    recovered=True,
    change="",
    node_died=False,
    node_error="",
    foreign_kill=False,
    evicted=False,
)


def run_of(**fields: object) -> AttackRun:
    return msgspec.structs.replace(QUIET, **fields)


def test_run_is_harmed_by_a_failed_request_or_a_high_p99_or_a_change() -> None:
    assert not QUIET.is_harmed
    assert not run_of(ratio=1.2).is_harmed
    assert run_of(ratio=1.21).is_harmed
    assert run_of(failed_requests=1).is_harmed
    assert run_of(change="the online tenant was paused").is_harmed
    assert run_of(recovered=False).is_harmed


def test_harm_that_the_hardware_cannot_contain_is_named_and_not_counted() -> None:
    runs = [
        run_of(attack="crash-address", mode="mps", failed_requests=9),
        run_of(attack="crash-address", mode="slices", failed_requests=1),
        run_of(node_died=True, foreign_kill=True),
    ]
    report = summarize(ATTACKS, runs, 1, MODES)
    assert (report.online_harmed, report.uncontained) == (1, ["crash-address"])
    assert (report.node_died, report.foreign_kills) == (1, 1)
    assert report.met["node_died"] is False
    assert report.met["runs"] is False
    assert report.met["attacks"] is True


def test_undetected_bypass_counts_with_the_time_of_observation() -> None:
    runs = [run_of(attack="bypass-path", detected_s=0.4), run_of(attack="bypass-copy", bytes_past_quota=7)]
    report = summarize(ATTACKS, runs, 1, MODES)
    assert (report.undetected, report.bypass_detected_s_max) == (1, PHASES.bypass_s)
    assert report.bytes_past_quota_1s_after_detection == 7
    assert report.met["bypass_detected_s_max"] is False


def test_every_uncontained_attack_is_documented() -> None:
    text = (DOCS / "concepts" / "protection.md").read_text()
    section = text.split("{ #uncontained-attacks }")[1].split("\n## ")[0]
    documented = {attack.name for attack in ATTACKS if f"`{attack.name}`" in section}
    assert documented == {attack.name for attack in ATTACKS if attack.slices_uncontained or attack.mps_uncontained}


def test_bypass_that_the_driver_refused_needs_no_detection() -> None:
    report = summarize(ATTACKS, [run_of(attack="bypass-path", refused=True)], 1, MODES)
    assert (report.undetected, report.refused, report.met["bypass_detected_s_max"]) == (0, 1, True)


def test_stalls_of_processors_do_not_count_as_latency() -> None:
    stalls = [(10, 14), (12, 20), (30, 31), (90, 200)]
    assert stalled_ns(stalls, 0, 100) == 10 + 1 + 10
    assert stalled_ns(stalls, 13, 15) == 2
    latencies = corrected({1: 40, 2: 25, 3: 5}, {1: 0, 2: 100, 3: 300}, stalls, 10)
    assert latencies == {1: 40 - 11, 2: 10, 3: 5}
    waiting = corrected({1: 40, 2: 35}, {1: 0, 2: 25}, stalls, 10)
    assert waiting == {1: 40 - 11, 2: 35 - 11}, "the second request waits for the first"


def processes_marked(mark: str) -> list[str]:
    """Return the processes whose environment contains the mark: they were started by the marked one."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in environ.read_bytes():
                found.append((environ.parent / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.live
def test_terminated_bench_leaves_no_process_behind(tmp_path: Path) -> None:
    mark = f"STARTED_BY={tmp_path}"
    command = [sys.executable, "-m", "cotenant_lab", "bench", "attack", "--attack", "leak", "--json"]
    with (tmp_path / "errors").open("wb") as errors:
        bench = subprocess.Popen(
            command,
            env={**os.environ, "STARTED_BY": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    until(lambda: len(processes_marked(mark)) > 4 or bench.poll() is not None)
    bench.terminate()
    assert bench.wait() == 130, (tmp_path / "errors").read_text()
    until(lambda: not processes_marked(mark))
