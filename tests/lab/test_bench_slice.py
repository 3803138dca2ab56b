"""Bench `slice`: its program runs, launches are cut, and simulated delays follow the bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_lab.bench.slice import bench

pytestmark = pytest.mark.live


def test_the_kernel_and_its_variant_are_compared(softgpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LAUNCHES", 10)
    rows = bench.compare(softgpu)
    assert len(rows) == 9
    assert all(plain > 0 and variant > 0 for plain, variant in rows)


def test_launches_are_cut_in_front_of_an_idle_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CUT_LAUNCHES", 40)
    bench.part_cost_us(tmp_path / "hook")  # it fails if none was


def test_simulated_delays_stay_within_the_bound() -> None:
    short, long = (bench.longest_delay_us(bound_us) for bound_us in (50, 250))
    assert 0 < short <= 50 + bench.DELAY_MARGIN_US
    assert short < long <= 250 + bench.DELAY_MARGIN_US


def test_a_module_is_rewritten() -> None:
    assert bench.rewrite_cost_ms() > 0
