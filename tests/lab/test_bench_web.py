"""Short run of bench `web` with four tenants; processor time is not asserted."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from cotenant.web.static import StaticFiles
from cotenant_lab.bench import web
from cotenant_lab.bench.web import FULL, Phase, show_web, summarize
from cotenant_lab.cli import main


def phases(alone: list[float], closed: list[tuple[float, float]], opened: list[float]) -> dict[str, list[Phase]]:
    return {
        "alone": [Phase(node) for node in alone],
        "closed": [Phase(node, console) for node, console in closed],
        "open": [Phase(node, 2.0, 1000.0) for node in opened],
    }


def test_the_cost_without_a_page_is_compared_within_each_round() -> None:
    measured = phases([3.0, 9.0, 4.0], [(3.1, 0.1), (9.1, 0.1), (6.0, 0.1)], [4.0, 11.0, 5.0])
    report = summarize(FULL, measured, 900.0, has_targets=True)
    assert report.closed_cpu_pct == pytest.approx(0.2)
    assert (report.node_cpu_pct, report.node_alone_cpu_pct, report.console_cpu_pct) == (5.0, 4.0, 2.0)
    assert report.page_adds_cpu_pct == pytest.approx(3.0)
    assert report.met == {"node_cpu_pct": True, "closed_cpu_pct": True, "render_ms": True}
    without_browser = summarize(FULL, measured, None, has_targets=True)
    assert without_browser.render_ms is None
    assert without_browser.met == {"node_cpu_pct": True, "closed_cpu_pct": True}
    shown = io.StringIO()
    show_web(Console(file=shown, width=120), without_browser)
    assert "not measured" in shown.getvalue()


@pytest.mark.live
@pytest.mark.timeout(400)
def test_a_node_is_measured_with_and_without_its_console(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(web, "WEB", tmp_path)  # a checkout in which Playwright is not installed
    monkeypatch.setattr(StaticFiles, "is_built", True)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert main(["bench", "web", "--quick", "--json"]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out.splitlines()[-1])
    assert (found["gpus"], found["tenants"], found["rounds"], found["met"]) == (2, 4, 1, {})
    assert found["node_cpu_pct"] > 0
    assert found["console_cpu_pct"] > 0
    assert found["render_ms"] is None
    assert "render_ms is not measured: Playwright is not installed: run `make web`" in err


def test_flags_of_other_benches_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "web", "--gpus", "4"]) == 2
    assert "--gpus = " in capsys.readouterr().err
