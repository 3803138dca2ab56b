"""Is what the bench of matching matches always the same, and does it say the truth of it?"""

import json
from typing import Any

import numpy as np
import pytest

from cotenant.cli import main
from cotenant.experiment import match
from cotenant.experiment.match_case import Solved, solve
from cotenant.experiment.match_tables import WORTHS, distinct, drawn_kinds, structured


@pytest.mark.parametrize("worth", WORTHS)
def test_rows_are_the_same_however_they_are_asked_for(worth: str) -> None:
    whole = distinct(worth, 40)(0, 40)
    assert whole.dtype == np.float32
    assert ((whole >= 0) & (whole <= 1)).all()
    assert (whole == 0).any()
    parts = [distinct(worth, 40)(begin, begin + 8) for begin in range(0, 40, 8)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(np.unique(whole, axis=0)) == len(np.unique(whole, axis=1).T) == 40


def test_so_many_are_drawn_as_are_asked_for() -> None:
    drawn = structured("speeds", 300)
    assert drawn.worth.shape == (len(drawn.jobs), len(drawn.gpus)) == (500, 2000)
    assert drawn.jobs.sum() == drawn.gpus.sum() == 300
    assert not np.array_equal(drawn_kinds(500, 300, 1), drawn_kinds(500, 300, 3))


def test_the_command_says_how_near_the_best_each_is(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The processes are left out, but for one."""
    made: list[tuple[str, ...]] = []
    really = match._solved

    def solved(solver: str, shape: str, worth: str, size: int, rounds: int, most_s: float | None) -> Solved | None:
        made.append((solver, shape, worth))
        apart = (solver, shape, worth) == ("scipy", "distinct", "speeds")
        return (
            really(solver, shape, worth, size, rounds, most_s) if apart else solve(solver, shape, worth, size, rounds)
        )

    monkeypatch.setattr(match, "_solved", solved)
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


def test_without_the_exact_optimum_the_bound_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Solved(seconds=1, value=99, bound=100, peak_mib=1)
    monkeypatch.setattr(match, "_solved", lambda solver, *_: None if solver == "scipy" else one)
    report = match.bench_match(1, lambda _: None, sizes=(match.EXACT_LIMIT, match.EXACT_LIMIT + 1))
    assert {(case.optimal_by, case.vs_optimal) for case in report.cases} == {("bound", 0.99)}
    assert report.met == {"structured_vs_optimal": False, "distinct_vs_optimal": True}


def test_a_target_that_is_missed_is_said_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    slow = Solved(seconds=9, value=100, bound=100, peak_mib=1)
    monkeypatch.setattr(match, "_solved", lambda solver, *_: None if solver == "scipy" else slow)
    assert main(["bench", "match", "--json"]) == 1
    assert [name for name, met in json.loads(capsys.readouterr().out)["met"].items() if not met] == [
        "largest_structured_seconds"
    ]
    assert main(["bench", "match"]) == 1
    assert "MISSED: largest_structured_seconds" in capsys.readouterr().out
