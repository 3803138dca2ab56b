"""Do real programs go through every way to share that the lab of control compares?"""

from pathlib import Path

import pytest

from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import BACK_TO_BACK, TRAINING
from cotenant.experiment.lab import arkgpu_live
from cotenant.experiment.lab.arkgpu_live import MODES, LiveCase, judge_live
from cotenant.experiment.lab.fikit_cases import made_up


def test_every_way_answers_every_request_and_the_books_know_who_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOLD_NS": 200 * MILLISECOND_NS, "SOLO_REQUESTS": 20, "OFFLINE_ALONE_S": 0.1}.items():
        monkeypatch.setattr(arkgpu_live, name, value)
    case = LiveCase(
        name="made up",
        online=made_up("service", 100, 100_000, BACK_TO_BACK, MILLISECOND_NS),
        offline=made_up("training", 400, 4000, TRAINING, MILLISECOND_NS),
    )
    rounds = []
    (told,) = judge_live(tmp_path, [case], 1, lambda: rounds.append(1))
    assert list(told.ways) == list(MODES)
    assert rounds == [1]
    assert told.slo_ms == pytest.approx(arkgpu_live.OBJECTIVE * told.solo_p99_ms)
    assert told.requests > 0
    for way in told.ways.values():
        assert 0 <= way.attainment <= 1
        assert way.goodput <= way.attainment + way.offline
    assert told.ways["alone"].offline == 0 < told.ways["exclusive"].offline
    assert told.ways["alone"].delay_ms == told.ways["exclusive"].delay_ms == 0, "each has a device of its own"
    assert max(told.ways[way].delay_ms for way in ("mps", "slices")) > 0, "nobody ever waited for the other"
    assert [at for at, _, _ in told.changes] == sorted(at for at, _, _ in told.changes)
    assert all(0 < part <= 1 and why for _, part, why in told.changes)
