"""Live test of study `arkgpu`: real programs run in every sharing mode."""

from pathlib import Path

import pytest

from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import BACK_TO_BACK, TRAINING
from cotenant_lab.study.arkgpu import live as arkgpu_live
from cotenant_lab.study.arkgpu.live import MODES, ArkLiveCase, evaluate_live
from cotenant_lab.study.fikit.cases import synthetic

pytestmark = pytest.mark.live


def test_every_mode_answers_every_request_and_counts_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOLD_NS": 200 * MILLISECOND_NS, "SOLO_REQUESTS": 20, "OFFLINE_ALONE_S": 0.1}.items():
        monkeypatch.setattr(arkgpu_live, name, value)
    case = ArkLiveCase(
        name="synthetic",
        online=synthetic("service", 100, 100_000, BACK_TO_BACK, MILLISECOND_NS),
        offline=synthetic("training", 400, 4000, TRAINING, MILLISECOND_NS),
    )
    rounds = []
    (results,) = evaluate_live(tmp_path, [case], 1, lambda: rounds.append(1))
    assert list(results.modes) == list(MODES)
    assert rounds == [1]
    assert results.slo_ms == pytest.approx(arkgpu_live.OBJECTIVE * results.solo_p99_ms)
    assert results.requests > 0
    for mode in results.modes.values():
        assert 0 <= mode.attainment <= 1
        assert mode.goodput <= mode.attainment + mode.offline
    assert results.modes["alone"].offline == 0 < results.modes["exclusive"].offline
    assert results.modes["alone"].delay_ms == results.modes["exclusive"].delay_ms == 0, "each tenant has its own device"
    assert max(results.modes[mode].delay_ms for mode in ("mps", "slices")) > 0, "no tenant ever waited for the other"
    assert [at for at, _, _ in results.changes] == sorted(at for at, _, _ in results.changes)
    assert all(0 < part <= 1 and why for _, part, why in results.changes)
