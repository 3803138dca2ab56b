"""Graphs and stream capture by unmodified programs: results, order of nodes, and error codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.softgpu import manage
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def assert_memory_released(directory: Path) -> None:
    counters = manage.inspect(directory, 0)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
    assert counters["unsupported"] == {}


def test_graphs_built_by_hand_run_in_order(softgpu: Path) -> None:
    assert "graphs go" in run(softgpu, "graphs.py")
    assert_memory_released(softgpu)


def test_work_in_captured_streams_becomes_a_graph(softgpu: Path) -> None:
    assert "captured" in run(softgpu, "capture.py")
    assert_memory_released(softgpu)


def test_invalid_captures_get_the_drivers_codes(softgpu: Path) -> None:
    assert "void" in run(softgpu, "capture_errors.py")
    assert_memory_released(softgpu)


def test_graph_updates_apply_or_report_the_reason(softgpu: Path) -> None:
    assert "updated" in run(softgpu, "graph_update.py")
    assert_memory_released(softgpu)


def test_graph_memory_is_allocated_and_freed_by_launches(softgpu: Path) -> None:
    assert "given back" in run(softgpu, "graph_memory.py")
    assert_memory_released(softgpu)


def test_cuda_core_builds_graphs(softgpu: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra dev)")
    assert "core builds" in run(softgpu, "core_graphs.py")
    assert_memory_released(softgpu)


def test_graphs_span_contexts_and_outlive_them(softgpu: Path) -> None:
    assert "taken apart" in run(softgpu, "graph_contexts.py")
    assert_memory_released(softgpu)
