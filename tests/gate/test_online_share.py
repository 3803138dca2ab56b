"""The permitted delay of higher priorities ranges from exclusive use to open sharing by priority."""

from itertools import pairwise

import msgspec
import pytest

from cotenant.gate.rules import GateRules
from cotenant.simulate.kernels import RunSettings, Tenant, play
from cotenant.softgpu.sim.device import preset
from cotenant.softgpu.sim.host import Client, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.softgpu.sim.results import DeviceRun
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import TRAINING, Arrival, Launch, Workload

US = 1000
SETTING = RunSettings(device=preset("v100"))


def kernel(name: str, blocks: int, device_ns: int, interval_ns: int = 0) -> Launch:
    """Return a launch without PTX: launches in parts cost some of the offline speed, whatever the permitted delay."""
    kernel = KernelIdentity(name, (blocks, 1, 1), (256, 1, 1))
    return Launch(kernel, device_ns, interval_ns, registers=64, has_ptx=False)


def service(*, graph: bool) -> Workload:
    """A request of 1 ms in 20 kernels, about every 4 ms."""
    launches = tuple(kernel(f"s{index % 4}", 320, 50 * US, 10 * US) for index in range(20))
    return Workload("service", launches, Arrival("poisson", rate_per_s=250, seed=3), 150, graph)


def training() -> Workload:
    lengths = (30, 200, 80, 600, 20, 120)
    launches = (kernel(f"t{us}", 4 * us + 40, us * US, 5 * US) for us in lengths)
    return Workload("training", tuple(launches), TRAINING, 1, graph=False)


def by_priorities_alone(tenants: list[Tenant]) -> DeviceRun:
    clients = [
        Client(tenant.load, 0, index, SETTING.warm * (index == 0), -(index == 0))
        for index, tenant in enumerate(tenants)
    ]
    return DeviceSimulation(SETTING.device, clients, [OpenGate() for _ in clients], SETTING.costs, 0).play()


@pytest.mark.parametrize("graph", [False, True])
def test_offline_work_grows_with_the_permitted_delay(graph: bool) -> None:
    tenants = [Tenant(load=service(graph=graph), priority=2), Tenant(load=training(), priority=7)]
    delays_ppm = (0, 20_000, 300_000, 4_000_000)
    runs = [
        play("fill", tenants, msgspec.structs.replace(SETTING, rules=GateRules(delay_ppm=delay))).played
        for delay in delays_ppm
    ]
    done = [run.clients[1].done_ns / run.wall_ns for run in runs]
    assert all(less < more for less, more in pairwise(done)), done
    means = [sum(run.clients[0].latencies_ns) for run in runs]
    assert means == sorted(means)
    opened = by_priorities_alone(tenants)
    assert done[-1] >= 0.9 * opened.clients[1].done_ns / opened.wall_ns
    assert means[-1] <= 1.1 * sum(opened.clients[0].latencies_ns)
