"""Tests of bench `match`: instances are deterministic, and the report is true."""

import json
from typing import Any

import numpy as np
import pytest

from cotenant_lab.bench.match import bench as match
from cotenant_lab.bench.match.case import MatchResult, solve
from cotenant_lab.bench.match.instances import WEIGHTS, distinct, drawn_kinds, structured
from cotenant_lab.cli import main


@pytest.mark.parametrize("weight", WEIGHTS)
def test_rows_do_not_depend_on_the_requested_range(weight: str) -> None:
    whole = distinct(weight, 40)(0, 40)
    assert whole.dtype == np.float32
    assert ((whole >= 0) & (whole <= 1)).all()
    assert (whole == 0).any()
    parts = [distinct(weight, 40)(begin, begin + 8) for begin in range(0, 40, 8)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(np.unique(whole, axis=0)) == len(np.unique(whole, axis=1).T) == 40


def test_requested_number_is_drawn() -> None:
    prepared = structured("speeds", 300)
    assert prepared.weight.shape == (len(prepared.jobs), len(prepared.gpus)) == (500, 2000)
    assert prepared.jobs.sum() == prepared.gpus.sum() == 300
    assert not np.array_equal(drawn_kinds(500, 300, 1), drawn_kinds(500, 300, 3))


def test_command_reports_fraction_of_optimum(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Run only one case in its own process; the others run in this process."""
    made: list[tuple[str, ...]] = []
    really = match._match_result

    def solved(
        solver: str, shape: str, weight: str, size: int, rounds: int, most_s: float | None
    ) -> MatchResult | None:
        made.append((solver, shape, weight))
        apart = (solver, shape, weight) == ("scipy", "distinct", "speeds")
        return (
            really(solver, shape, weight, size, rounds, most_s) if apart else solve(solver, shape, weight, size, rounds)
        )

    monkeypatch.setattr(match, "_match_result", solved)
    monkeypatch.setattr(match, "QUICK_SIZES", (60,))
    assert main(["bench", "match", "--quick", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["cases"]) == 4
    assert len(made) == 8
    for case in report["cases"]:
        assert case["optimal_by"] == "exact"
        assert 0.999 <= case["vs_optimal"] <= 1 + 1e-6
        assert case["vs_bound"] <= case["vs_optimal"] + 1e-6
        assert case["seconds"] > 0
        assert case["peak_mib"] > 1
    assert report["met"] == {"structured_vs_optimal": True, "distinct_vs_optimal": True}
    assert report["structured_vs_optimal"] == min(case["vs_optimal"] for case in report["cases"][:2])


def test_bound_is_used_without_exact_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    one = MatchResult(seconds=1, value=99, bound=100, peak_mib=1)
    monkeypatch.setattr(match, "_match_result", lambda solver, *_: None if solver == "scipy" else one)
    report = match.bench_match(1, lambda _: None, sizes=(match.EXACT_LIMIT, match.EXACT_LIMIT + 1))
    assert {(case.optimal_by, case.vs_optimal) for case in report.cases} == {("bound", 0.99)}
    assert report.met == {"structured_vs_optimal": False, "distinct_vs_optimal": True}


def test_missed_target_is_reported_and_exits_with_zero(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    slow = MatchResult(seconds=9, value=100, bound=100, peak_mib=1)
    monkeypatch.setattr(match, "_match_result", lambda solver, *_: None if solver == "scipy" else slow)
    assert main(["bench", "match", "--json"]) == 0
    assert [name for name, met in json.loads(capsys.readouterr().out)["met"].items() if not met] == [
        "largest_structured_seconds"
    ]
    assert main(["bench", "match"]) == 0
    assert "MISSED: largest_structured_seconds" in capsys.readouterr().out
