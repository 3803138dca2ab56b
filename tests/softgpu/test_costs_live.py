"""Costs of a running software GPU, and kernels whose duration depends on data."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cotenant.softgpu import manage
from cotenant.softgpu.costs import HARDWARE, IDEAL, GpuCosts, KernelCosts
from cotenant.units.toml import DurationNs, ShareOfWhole
from tests.support.software_gpus import run

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

MS = 1_000_000
DURATIONS_NS = (3_300_000, 7_700_000)
TRAFFIC_BYTES = 450 * sum(DURATIONS_NS)
"""Half of the bandwidth of a V100."""


def coarse() -> GpuCosts:
    """Return the `hardware` costs with instants of events in whole milliseconds and a clock without drift."""
    driver = msgspec.structs.replace(HARDWARE.driver, event_resolution=DurationNs(MS), clock_drift_ppb=0)
    return msgspec.structs.replace(HARDWARE, driver=driver, kernels=IDEAL.kernels)


@pytest.mark.parametrize("costs, resolution_ns", [(IDEAL, 1000), (coarse(), MS)])
def test_duration_and_traffic_follow_data_and_instants_the_resolution(
    tmp_path: Path, costs: GpuCosts, resolution_ns: int
) -> None:
    manage.create(tmp_path / "gpu", "v100", 1, costs=costs)
    try:
        shown = json.loads(run(tmp_path / "gpu", "data_duration.py"))
        traffic_bytes = manage.inspect(tmp_path / "gpu", 0)["counters"]["traffic_bytes"]
    finally:
        manage.destroy(tmp_path / "gpu")
    for elapsed_ns, duration_ns in zip(shown["elapsed"], DURATIONS_NS, strict=True):
        remainder_ns = elapsed_ns % resolution_ns
        assert (
            resolution_ns == 1000 or min(remainder_ns, resolution_ns - remainder_ns) < 1000
        )  # a float of milliseconds
        assert elapsed_ns >= duration_ns - resolution_ns  # the host's time between two calls is added
    assert shown["refused"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert traffic_bytes == pytest.approx(TRAFFIC_BYTES, rel=0.01)


def test_durations_vary_by_the_spread_of_the_data(tmp_path: Path) -> None:
    kernels = KernelCosts(data_spread=ShareOfWhole(100_000))
    manage.create(tmp_path / "gpu", "v100", 1, costs=msgspec.structs.replace(IDEAL, kernels=kernels))
    try:
        shown = json.loads(run(tmp_path / "gpu", "data_duration.py"))
    finally:
        manage.destroy(tmp_path / "gpu")
    ratios = [elapsed / duration for elapsed, duration in zip(shown["elapsed"], DURATIONS_NS, strict=True)]
    assert any(abs(ratio - 1) > 0.002 for ratio in ratios)
    assert all(ratio > 0.6 for ratio in ratios)
