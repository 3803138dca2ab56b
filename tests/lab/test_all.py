"""Tests of study `all`: every claim has a result, and kept reports are read."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotenant.errors import ConfigError
from cotenant_lab.study.all.claims import LABS, AllReport
from cotenant_lab.study.all.run import run_all, show_all, write_page

OF = {"median": 2.5, "min": 1.25, "max": 7.0}
FOUND = {
    "utilization": [0.26, 0.58],
    "sm_activity": [0.14, 0.28],
    "memory": [0.33, 0.55],
    "full": {"utilization": 0.7},
    "online_slowdown": 1.031,
    "online_slowdown_p99": 1.3,
}
REPORTS: dict[str, Any] = {
    "fikit": {
        "seed": 0,
        "quick": True,
        "groups": {
            "pairs": {
                "metrics": {"online_speedup_vs_sharing_mps": OF, "online_delay_ratio_mps": OF, "else": OF},
                "fast_fraction": {"mps": 0.6},
            }
        },
        "met": {"a target": True, "another": False},
    },
    "arkgpu": {
        "seed": 0,
        "quick": True,
        "simulated": {
            "against": dict.fromkeys(("throughput_vs_mps_pct", "goodput_vs_exclusive_pct", "goodput_vs_mps_pct"), OF),
            "attainable": 9,
            "attained": {"cotenant": 8},
        },
        "peaks": {"peak_vs_mps_pct": OF},
        "met": {},
    },
    "dstack": {
        "seed": 0,
        "quick": True,
        "results": [{"mode": "temporal", "models": "all", "throughput": OF, "utilization": OF}],
        "loads": [{"mode": "dstack", "load": 1.0, "of_bound": OF}],
        "met": {},
    },
    "muxflow": {
        "seed": 0,
        "quick": True,
        "clusters": [
            {
                "name": "philly",
                "gpus": 16,
                "jobs": 40,
                "found": [{"policy": "match", "jct_h": 2.0, **FOUND}, {"policy": "random", "jct_h": 5.0, **FOUND}],
            }
        ],
        "met": {},
    },
}


class Labs:
    """Return prepared reports instead of running studies, and count the runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def named(self, lab: str) -> Callable[..., object]:
        def run(*_: object, quick: bool) -> object:
            assert quick
            self.ran.append(lab)
            return REPORTS[lab]

        return run


def study(reuse: str, labs: Labs) -> AllReport:
    runs = {lab: labs.named(lab) for lab in LABS}
    return run_all(Path(), reuse, 0, Console(quiet=True), lambda _: None, quick=True, runs=runs)


def test_every_claim_has_a_result_and_limitations(tmp_path: Path) -> None:
    labs = Labs()
    report = study("", labs)
    assert labs.ran == list(LABS)
    assert [lab.lab for lab in report.labs] == list(LABS)
    for lab in report.labs:
        assert lab.claims
        for claim in lab.claims:
            assert claim.claim
            assert claim.ours
            assert claim.measured
            assert "GPU" in claim.does_not_show
    by = {claim.claim: claim.ours for lab in report.labs for claim in lab.claims}
    assert by["GPU utilization 26 to 76 %"] == "26% to 58%, 70% while jobs wait (philly, 40 jobs, 16 GPUs)"
    assert "random 2.50 times as long" in by["offline jobs end earlier than under other placement and sharing modes"]
    assert "8 of 9" in by["throughput at the objective +584 % over MPS"]
    out = io.StringIO()
    show_all(Console(file=out, width=220), report)
    assert "missed: another" in out.getvalue()
    write_page(tmp_path / "all.html", report)
    page = (tmp_path / "all.html").read_text()
    assert "26% to 58%" in page
    assert "<b>missed</b>: another" in page


def test_kept_report_is_not_run_again(tmp_path: Path) -> None:
    first, second = Labs(), Labs()
    (tmp_path / "dstack.json").write_text(json.dumps({**REPORTS["dstack"], "seed": 41}))
    report = study(str(tmp_path), first)
    assert first.ran == ["fikit", "arkgpu", "muxflow"]
    assert {lab.lab: lab.seed for lab in report.labs}["dstack"] == 41
    assert study(str(tmp_path), second) == report
    assert not second.ran


def test_invalid_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "arkgpu.json").write_text('{"lab": "arkgpu"}')
    with pytest.raises(ConfigError, match=r"arkgpu.*run `cotenant-lab study arkgpu --json` again"):
        study(str(tmp_path), Labs())
    with pytest.raises(ConfigError, match="--reuse"):
        study(str(tmp_path / "nowhere"), Labs())
