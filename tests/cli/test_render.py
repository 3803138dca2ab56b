"""Tests of output to pipes, and of the results of the demo and the loop bench."""

import json
import signal
from pathlib import Path

import pytest

from cotenant.cli.command import output
from cotenant.cli.render.tables import table
from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live


def test_piped_tables_are_neither_cut_nor_padded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = [letter * 40 for letter in "abcdefghij"]
    for columns in (None, "80"):
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", columns)
        output().print(table("wide", wide, [wide, ["short"] * 10]))
        lines = capsys.readouterr().out.splitlines()
        assert [line.split() for line in lines] == [["wide"], wide, wide, ["short"] * 10]
        assert all(line == line.rstrip() for line in lines)


@pytest.mark.slow
def test_the_sharing_demo_writes_a_report(node_harness: NodeHarness, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = node_harness.run("demo", "--requests", "10", "--report", str(page), "--json", bound_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["fine"] is True
    assert [(phase["name"], phase["requests"]) for phase in result["phases"]] == [
        ("alone", 10),
        ("default sharing", 10),
        ("MPS", 10),
        ("MPS with priorities", 10),
        ("cotenant", 10),
    ]
    alone, shared, *_, cotenant = result["phases"]
    assert alone["waited_ns"] == alone["steps_per_s"] == 0 < shared["waited_ns"]
    assert min(shared["steps_per_s"], cotenant["steps_per_s"]) > 0
    for phase in result["phases"]:
        assert phase["latencies_ns"] == sorted(phase["latencies_ns"])
        assert 0 < phase["sm_activity"] <= 1.01
        assert phase["timeline"]["online"]
    assert Path(result["trace"]).is_file()
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 8
    assert not [word for word in ("src=", "href=", "@import", "url(") if word in text]


@pytest.mark.slow
def test_the_node_demo_passes(node_harness: NodeHarness) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job that a shell starts in the background
    try:
        done = node_harness.run("demo", "--story", "node", "--json", bound_s=240)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["fine"] is True
    assert [step["what"] for step in result["steps"] if not step["fine"]] == []
    assert len(result["steps"]) >= 7
    assert done.stderr == ""
