"""Do the demo and the bench end well, and say so in one JSON object on their last line?"""

import json
import signal
from pathlib import Path

import pytest

from cotenant.apps.show import table
from cotenant.cli import main
from cotenant.cli.study import paper
from cotenant.experiment import loop
from tests.e2e.stage import Stage


def test_findings_in_a_file_keep_all_their_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = [letter * 12 for letter in "abcdefghij"]
    monkeypatch.delenv("COLUMNS", raising=False)
    paper().print(table("wide", wide, [wide]))
    assert wide[-1] in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    assert paper().width == 80


@pytest.mark.slow
def test_the_demo_of_sharing_leaves_a_page(stage: Stage, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = stage.run("demo", "--requests", "10", "--report", str(page), "--json", bound_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["fine"] is True
    assert [(act["name"], act["requests"]) for act in told["acts"]] == [
        ("alone", 10),
        ("default sharing", 10),
        ("MPS", 10),
        ("cotenant", 10),
    ]
    alone, shared, _, ours = told["acts"]
    assert alone["waited_ns"] == alone["steps_per_s"] == 0 < shared["waited_ns"]
    assert min(shared["steps_per_s"], ours["steps_per_s"]) > 0
    for act in told["acts"]:
        assert act["latencies_ns"] == sorted(act["latencies_ns"])
        assert 0 < act["sm_activity"] <= 1.01
        assert act["picture"]["online"]
    assert Path(told["trace"]).is_file()
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 7
    assert not [word for word in ("src=", "href=", "@import", "url(") if word in text]


@pytest.mark.slow
def test_the_story_of_the_node_is_fine(stage: Stage) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job that a shell starts in the background
    try:
        done = stage.run("demo", "--story", "node", "--json", bound_s=240)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["fine"] is True
    assert [step["what"] for step in told["steps"] if not step["fine"]] == []
    assert len(told["steps"]) >= 7
    assert done.stderr == ""


def test_the_bench_of_the_loop_has_every_figure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COTENANT_CONFIG", stage.environ["COTENANT_CONFIG"])
    monkeypatch.setattr(loop, "EVENTS", 10_000)  # of many events only the figures mean more, and they take their time
    monkeypatch.setattr(loop, "NODES", 50)
    assert main(["bench", "loop", "--rounds", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
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
