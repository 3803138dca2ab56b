"""Do real tenants go through all that the lab of one node needs: come late, be evicted, come back?"""

from pathlib import Path

from cotenant.domain.instant import MILLISECOND_NS
from cotenant.domain.load import BACK_TO_BACK, TRAINING
from cotenant.experiment.lab.fikit_cases import made_up
from cotenant.experiment.lab.muxflow_cases import at_level
from cotenant.experiment.lab.muxflow_live import LiveCase, LiveNode, Sizes

GIB = 1 << 30


def test_a_training_goes_for_a_newcomer_and_comes_back_beside_the_service(tmp_path: Path) -> None:
    online = at_level(made_up("service", 40, 40_000, BACK_TO_BACK, MILLISECOND_NS), 0.1, 1)
    assert online is not None
    training = made_up("training", 100, 4000, TRAINING, MILLISECOND_NS)
    sizes = Sizes(6 * GIB, 4 * GIB, 5 * GIB, 3 * GIB)
    case = LiveCase(name="made up", level=0.1, online=online, offline=(training, training), sizes=sizes)
    with LiveNode(tmp_path) as node:
        node.teach(training)
        act = node.perform(case, shared=True)
    assert (act.evicted, act.came_back, act.health) == (1, True, "healthy")
    assert min(act.offline_done_ns) > 0
    assert act.scene.requests > 0
    assert act.scene.busy_ns > act.scene.requests * online.device_ns
    assert sizes.service / (16 * GIB) * 0.9 < act.memory <= 1
    assert act.scene.online_delayed_ns < act.scene.busy_ns
