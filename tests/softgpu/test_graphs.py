"""Graphs and stream capture by unmodified programs: what runs, in which order, and what is refused with which code."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def expect_nothing_left(directory: Path) -> None:
    counters = manage.inspect(directory, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
    assert counters["unsupported"] == {}


def test_graphs_built_by_hand_run_in_order(softgpu: Path) -> None:
    assert "graphs go" in run(softgpu, "graphs.py")
    expect_nothing_left(softgpu)


def test_work_in_captured_streams_becomes_a_graph(softgpu: Path) -> None:
    assert "captured" in run(softgpu, "capture.py")
    expect_nothing_left(softgpu)


def test_what_cannot_be_captured_gets_the_drivers_codes(softgpu: Path) -> None:
    assert "void" in run(softgpu, "capture_errors.py")
    expect_nothing_left(softgpu)


def test_updates_change_later_launches_or_say_why_not(softgpu: Path) -> None:
    assert "updated" in run(softgpu, "graph_update.py")
    expect_nothing_left(softgpu)


def test_memory_of_graphs_comes_and_goes_with_their_launches(softgpu: Path) -> None:
    assert "given back" in run(softgpu, "graph_memory.py")
    expect_nothing_left(softgpu)


def test_cuda_core_builds_graphs(softgpu: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert "core builds" in run(softgpu, "core_graphs.py")
    expect_nothing_left(softgpu)


def test_graphs_reach_over_contexts_and_outlive_them(softgpu: Path) -> None:
    assert "taken apart" in run(softgpu, "graph_contexts.py")
    expect_nothing_left(softgpu)
