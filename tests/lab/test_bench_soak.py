"""Short run of bench `soak`: models change and workers are killed, and every admitted request is answered."""

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("onnxruntime")
from cotenant.units.instant import SECOND_NS
from cotenant_lab.bench.soak import bench_soak

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_no_admitted_request_is_lost_while_models_change() -> None:
    report = bench_soak(9 * SECOND_NS, print)
    assert report.lost == 0, report.lost_reasons
    assert report.answered > 0
    assert report.workers_killed > 0
    assert min(report.loads, report.unloads, report.replacements) > 0
