"""Do the demo and the bench end well, and say so in one JSON object on their last line?"""

import json
import signal

import pytest

from tests.e2e.stage import Stage
from tests.tool import ROOT

REPLAY = ROOT / "examples" / "replay.py"


@pytest.mark.slow
def test_the_demo_is_fine(stage: Stage) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job that a shell starts in the background
    try:
        done = stage.run("demo", "--replay", str(REPLAY), "--json", bound_s=240)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["fine"] is True
    assert [step["what"] for step in told["steps"] if not step["fine"]] == []
    assert len(told["steps"]) >= 8
    assert done.stderr == ""


@pytest.mark.slow
def test_the_bench_of_the_loop_has_every_figure(stage: Stage) -> None:
    done = stage.run("bench", "loop", "--rounds", "1", "--json", bound_s=240)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    for name in (
        "sim_events_per_s",
        "vs_bare_heap",
        "vs_bare_heap_journaled",
        "journal_bytes_per_event",
        "live_turn_us_p50",
        "live_turn_us_p99",
    ):
        assert figures[name] > 0, name
    assert figures["live_turn_us_p50"] <= figures["live_turn_us_p99"]
    assert figures["rounds"] == 1
