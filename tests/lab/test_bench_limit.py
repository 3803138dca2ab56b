"""Short run of bench `limit`, as tables and as JSON; the accuracy of shares is not asserted."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from cotenant_lab.bench.limit import bench as limit
from cotenant_lab.bench.limit import more_cases as limit_more
from cotenant_lab.bench.limit.tables import show_limit
from cotenant_lab.cli import main

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_every_share_is_measured_alone_and_with_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_MEASURED", ("large",))
    monkeypatch.setattr(limit, "_WARM_S", 0.2)
    monkeypatch.setattr(limit, "_SHORT_S", 0.4)
    monkeypatch.setattr(limit_more, "_WARM_S", 0.2)
    monkeypatch.setattr(limit_more, "SHARED_CASES", {"two": limit_more.SHARED_CASES["two with shares"]})
    output: list[str] = []
    report = limit.bench_limit(output.append, quick=True)
    assert [(case.neighbour, case.target_pct) for case in report.cases] == [
        *(("alone", 30), ("alone", 70)),
        *(("greedy", 30), ("greedy", 70)),
    ]
    assert [(case.neighbour, case.target_pct) for case in report.baseline] == [("alone", 30), ("greedy", 30)]
    assert all(0 <= case.actual_pct <= 101 for case in (*report.cases, *report.baseline))
    assert all(0 <= case.stalled_pct <= 110 for case in (*report.cases, *report.baseline))
    # A stall of the machine may take all of the time in which one of them is measured, but not of them all.
    assert sum(case.neighbour_pct for case in report.cases if case.neighbour == "greedy") > 0
    assert [(one.kind, one.neighbour) for one in report.unlimited] == [("large", "alone"), ("large", "greedy")]
    assert all(0 <= one.actual_pct <= 101 for one in report.unlimited)
    assert sum(one.actual_pct for one in report.unlimited) > 0
    assert [(one.tenant, one.target_pct) for one in report.more] == [("a", 30), ("b", 60)]
    assert all(0 <= one.actual_pct <= 101 for one in report.more)
    assert sum(one.actual_pct for one in report.more) > 0
    assert 0 <= report.min_share_pct <= 101
    assert report.resize_settle_ms >= 0
    assert report.machine.processors > 0
    assert 0 < report.machine.busy_pct <= 100
    assert len(output) == 12
    assert msgspec.json.decode(msgspec.json.encode(report), type=limit.LimitReport) == report
    shown = io.StringIO()
    show_limit(Console(file=shown, width=160), report)
    assert shown.getvalue().count("greedy") == 3


def test_flag_of_another_bench_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (("--rounds", "3"), ("--only", "kill-busy")):
        assert main(["bench", "limit", *flags]) == 2
        assert f"{flags[0]} = " in capsys.readouterr().err
