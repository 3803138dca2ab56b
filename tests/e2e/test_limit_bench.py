"""Does the bench of shares measure what it says, shown and as JSON? How well shares hold is not asked in a second."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from cotenant.apps.show_limit import show_limit
from cotenant.experiment import limit, limit_more
from tests.e2e.stage import Stage

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_every_share_is_measured_alone_and_beside_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_MEASURED", ("large",))
    monkeypatch.setattr(limit, "_WARM_S", 0.2)
    monkeypatch.setattr(limit, "_SHORT_S", 0.4)
    monkeypatch.setattr(limit_more, "_WARM_S", 0.2)
    monkeypatch.setattr(limit_more, "TOGETHER", {"two": limit_more.TOGETHER["two with shares"]})
    said: list[str] = []
    report = limit.bench_limit(said.append, quick=True)
    assert [(case.beside, case.target_pct) for case in report.cases] == [
        *(("alone", 30), ("alone", 70)),
        *(("greedy", 30), ("greedy", 70)),
    ]
    assert [(case.beside, case.target_pct) for case in report.baseline] == [("alone", 30), ("greedy", 30)]
    assert all(0 <= case.actual_pct <= 101 for case in (*report.cases, *report.baseline))
    assert all(0 <= case.stalled_pct <= 110 for case in (*report.cases, *report.baseline))
    # A stall of the machine may take all of the time in which one of them is measured, but not of them all.
    assert sum(case.neighbour_pct for case in report.cases if case.beside == "greedy") > 0
    assert [(one.kind, one.beside) for one in report.unlimited] == [("large", "alone"), ("large", "greedy")]
    assert all(0 <= one.actual_pct <= 101 for one in report.unlimited)
    assert sum(one.actual_pct for one in report.unlimited) > 0
    assert [(one.tenant, one.target_pct) for one in report.more] == [("a", 30), ("b", 60)]
    assert all(0 <= one.actual_pct <= 101 for one in report.more)
    assert sum(one.actual_pct for one in report.more) > 0
    assert 0 <= report.least_pct <= 101
    assert report.resize_settle_ms >= 0
    assert report.machine.processors > 0
    assert 0 < report.machine.busy_pct <= 100
    assert len(said) == 12
    assert msgspec.json.decode(msgspec.json.encode(report), type=limit.LimitReport) == report
    shown = io.StringIO()
    show_limit(Console(file=shown, width=160), report)
    assert shown.getvalue().count("greedy") == 3


def test_what_means_nothing_to_it_is_refused(stage: Stage) -> None:
    for flags in (("--rounds", "3"), ("--only", "kill-busy")):
        done = stage.run("bench", "limit", *flags)
        assert done.returncode == 2
        assert f"{flags[0]} = " in done.stderr
