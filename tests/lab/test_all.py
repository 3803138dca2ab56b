"""Tests of study `all`: every claim is counted and explained, and kept reports are read."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant_lab.study.all.claims import LABS, AllReport
from cotenant_lab.study.all.run import run_all, show_all, write_page
from cotenant_lab.study.claim import NOMINAL, PerturbedCell, claim_of

CELLS = [
    PerturbedCell(cell=NOMINAL, metrics={"speed": 9.0}),
    PerturbedCell(cell="durations x2", metrics={"speed": 2.0}),
    PerturbedCell(cell="contention x2", metrics={"speed": 3.0, "other": 1.0}),
]


def report_of(lab: str) -> dict[str, Any]:
    claims = [
        claim_of(lab, "fast", ("speed", 4.0, 3.5), CELLS, result="median 4.00", reason="a bound"),
        claim_of(lab, "cheap", ("speed", 4.0, 3.5), CELLS, result="median 4.00", reason="a bound", is_least=False),
    ]
    return {
        "lab": lab,
        "seed": 0,
        "quick": True,
        "claims": msgspec.to_builtins(claims),
        "met": {"a target": True, "another": False},
    }


class Labs:
    """Return prepared reports instead of running studies, and count the runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def named(self, lab: str) -> Callable[..., object]:
        def run(*_: object, quick: bool) -> object:
            assert quick
            self.ran.append(lab)
            return report_of(lab)

        return run


def study(reuse: str, labs: Labs) -> AllReport:
    runs = {lab: labs.named(lab) for lab in LABS}
    return run_all(Path(), reuse, 0, Console(quiet=True), lambda _: None, quick=True, runs=runs)


def test_every_claim_is_counted_with_its_worst_cell(tmp_path: Path) -> None:
    labs = Labs()
    report = study("", labs)
    assert labs.ran == [lab.lab for lab in report.labs] == list(LABS)
    assert (report.claims_total, report.claims_reached, report.claims_unexplained) == (10, 5, 0)
    fast, cheap = report.claims[:2]
    assert (fast.reached, fast.perturbed_worst, fast.perturbed_worst_cell) == (True, 2.0, "durations x2")
    assert (cheap.reached, cheap.perturbed_worst, cheap.perturbed_worst_cell) == (False, 3.0, "contention x2")
    out = io.StringIO()
    show_all(Console(file=out, width=220), report)
    assert "missed: another" in out.getvalue()
    assert "5 of 10 claims reached" in out.getvalue()
    write_page(tmp_path / "all.html", report)
    page = (tmp_path / "all.html").read_text()
    assert "2 (durations x2)" in page
    assert "<b>missed</b>: another" in page


def test_claim_without_a_reason_is_unexplained(tmp_path: Path) -> None:
    claim = claim_of("p", "c", ("speed", 1.0, 2.0), (), result="r", reason="")
    assert claim.perturbed_worst_cell == "not perturbed"
    for lab in LABS:
        content = {**report_of(lab), "claims": msgspec.to_builtins([claim])}
        (tmp_path / f"{lab}.json").write_text(json.dumps(content))
    assert study(str(tmp_path), Labs()).claims_unexplained == len(LABS)


def test_kept_report_is_not_run_again(tmp_path: Path) -> None:
    first, second = Labs(), Labs()
    (tmp_path / "dstack.json").write_text(json.dumps({**report_of("dstack"), "seed": 41}))
    report = study(str(tmp_path), first)
    assert first.ran == ["baselines", "fikit", "arkgpu", "muxflow"]
    assert {lab.lab: lab.seed for lab in report.labs}["dstack"] == 41
    assert study(str(tmp_path), second) == report
    assert not second.ran


def test_invalid_report_is_named(tmp_path: Path) -> None:
    for content in ('{"lab": "arkgpu"}', json.dumps(report_of("fikit"))):
        (tmp_path / "arkgpu.json").write_text(content)
        with pytest.raises(ConfigError, match=r"arkgpu.*run `cotenant-lab study arkgpu --json` again"):
            study(str(tmp_path), Labs())
    with pytest.raises(ConfigError, match="--reuse"):
        study(str(tmp_path / "nowhere"), Labs())
