"""Does the one dial of the gate, what those above may lose, go from nothing to open sharing by priorities?"""

from itertools import pairwise

import msgspec
import pytest

from cotenant.domain.gate import GateRules
from cotenant.domain.kernel import KernelIdentity
from cotenant.domain.load import TRAINING, Arrival, Launch, Load
from cotenant.experiment.kernels import Setting, Tenant, play
from cotenant.sim.device import preset
from cotenant.sim.kernels import World
from cotenant.sim.kernels_host import Client, Open
from cotenant.sim.kernels_played import Played

US = 1000
SETTING = Setting(device=preset("v100"))


def kernel(name: str, blocks: int, device_ns: int, interval_ns: int = 0) -> Launch:
    return Launch(KernelIdentity(name, (blocks, 1, 1), (256, 1, 1)), device_ns, interval_ns, registers=64)


def service(*, graph: bool) -> Load:
    """A request of 1 ms in 20 kernels, about every 4 ms."""
    launches = tuple(kernel(f"s{place % 4}", 320, 50 * US, 10 * US) for place in range(20))
    return Load("service", launches, Arrival("poisson", rate_per_s=250, seed=3), 150, graph)


def training() -> Load:
    lengths = (30, 200, 80, 600, 20, 120)
    launches = (kernel(f"t{us}", 4 * us + 40, us * US, 5 * US) for us in lengths)
    return Load("training", tuple(launches), TRAINING, 1, graph=False)


def by_priorities_alone(tenants: list[Tenant]) -> Played:
    clients = [
        Client(tenant.load, 0, place, SETTING.warm * (place == 0), -(place == 0))
        for place, tenant in enumerate(tenants)
    ]
    return World(SETTING.device, clients, [Open() for _ in clients], SETTING.costs, 0).play()


@pytest.mark.parametrize("graph", [False, True])
def test_offline_work_gets_the_more_the_more_those_above_may_lose(graph: bool) -> None:
    tenants = [Tenant(load=service(graph=graph), priority=2), Tenant(load=training(), priority=7)]
    dial = (0, 20_000, 300_000, 4_000_000)
    runs = [
        play("fill", tenants, msgspec.structs.replace(SETTING, rules=GateRules(delay_ppm=delay))).played
        for delay in dial
    ]
    done = [run.clients[1].done_ns / run.wall_ns for run in runs]
    assert all(one < other for one, other in pairwise(done)), done
    means = [sum(run.clients[0].latencies_ns) for run in runs]
    assert means == sorted(means)
    opened = by_priorities_alone(tenants)
    assert done[-1] >= 0.9 * opened.clients[1].done_ns / opened.wall_ns
    assert means[-1] <= 1.1 * sum(opened.clients[0].latencies_ns)
