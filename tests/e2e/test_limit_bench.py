"""Does the bench of shares measure what it says, shown and as JSON? How well shares hold is not asked in a second."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from cotenant.apps.show_limit import show_limit
from cotenant.experiment import limit
from tests.e2e.stage import Stage

pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_every_share_is_measured_alone_and_beside_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_MEASURED", ("large",))
    monkeypatch.setattr(limit, "_WARM_S", 0.2)
    monkeypatch.setattr(limit, "_QUICK_S", 0.4)
    said: list[str] = []
    report = limit.bench_limit(said.append, quick=True)
    assert [(case.beside, case.target_pct) for case in report.cases] == [
        *(("alone", 30), ("alone", 70)),
        *(("greedy", 30), ("greedy", 70)),
    ]
    assert [(case.beside, case.target_pct) for case in report.baseline] == [("alone", 30), ("greedy", 30)]
    assert all(0 <= case.actual_pct <= 101 for case in (*report.cases, *report.baseline))
    assert all(case.neighbour_pct > 0 for case in report.cases if case.beside == "greedy")
    assert 0 < report.unlimited_pct["large"] <= 101
    assert len(said) == 7
    assert msgspec.json.decode(msgspec.json.encode(report), type=limit.LimitReport) == report
    shown = io.StringIO()
    show_limit(Console(file=shown, width=160), report)
    assert shown.getvalue().count("greedy") == 3


def test_what_means_nothing_to_it_is_refused(stage: Stage) -> None:
    for flags in (("--rounds", "3"), ("--only", "kill-busy")):
        done = stage.run("bench", "limit", *flags)
        assert done.returncode == 2
        assert f"{flags[0]} = " in done.stderr
