"""Live test of study `muxflow-node`: a training is evicted and returns."""

from pathlib import Path

import pytest

from cotenant.units.instant import MILLISECOND_NS
from cotenant.workload.load import BACK_TO_BACK, TRAINING
from cotenant_lab.study.fikit.cases import synthetic
from cotenant_lab.study.muxflow_node.cases import at_level
from cotenant_lab.study.muxflow_node.live import LiveNode, NodeLiveCase, Quotas

pytestmark = pytest.mark.live

GIB = 1 << 30


def test_evicted_training_returns(tmp_path: Path) -> None:
    online = at_level(synthetic("service", 40, 40_000, BACK_TO_BACK, MILLISECOND_NS), 0.1, 1)
    assert online is not None
    training = synthetic("training", 100, 4000, TRAINING, MILLISECOND_NS)
    sizes = Quotas(6 * GIB, 4 * GIB, 5 * GIB, 3 * GIB)
    case = NodeLiveCase(name="synthetic", level=0.1, online=online, offline=(training, training), sizes=sizes)
    with LiveNode(tmp_path) as node:
        node.profile(training)
        act = node.run_players(case, shared=True)
    assert (act.evicted, act.came_back, act.health) == (1, True, "healthy")
    assert min(act.offline_done_ns) > 0
    assert act.run.requests > 0
    assert act.run.busy_ns > act.run.requests * online.device_ns
    assert sizes.service / (16 * GIB) * 0.9 < act.memory <= 1
    assert act.run.online_delayed_ns < act.run.busy_ns
