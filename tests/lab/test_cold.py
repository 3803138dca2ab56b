"""Services without a profile: the simulated runs of `bench cold`."""

import msgspec
import pytest

from cotenant.harness.harness import PRESET
from cotenant.simulate.kernels import RunSettings
from cotenant.softgpu.sim.device import preset
from cotenant.units.instant import SECOND_NS
from cotenant_lab.bench.cold.bench import measure, targets_met
from cotenant_lab.bench.cold.services import SHAPES, cold_services, cold_training

SERVICES = {service.name: service for service in cold_services(SECOND_NS)}


def test_training_has_the_stated_kernels() -> None:
    lengths = sorted(launch.device_ns for launch in cold_training().launches)
    assert 100_000 <= lengths[len(lengths) // 2] <= 300_000
    assert lengths[-1] <= 1_000_000


def test_services_are_of_eight_kinds() -> None:
    assert len(SERVICES) == 8
    assert len({launch.kernel for launch in SERVICES["10,000 shapes"].load.launches}) == SHAPES
    assert min(len(launch.kernel.function) for launch in SERVICES["long names"].load.launches) > 1_000


@pytest.mark.parametrize("name", ["one long kernel", "several processes"])
def test_service_without_a_profile_is_hardly_delayed(name: str) -> None:
    result = measure(SERVICES[name], cold_training(), RunSettings(device=preset(PRESET)))
    assert result.online_p50_ratio <= 1.05
    assert result.online_p99_ratio <= 1.10
    assert result.offline_vs_alone > 0.2
    assert all(targets_met([result]).values())
    assert not targets_met([msgspec.structs.replace(result, online_p99_ratio=1.2)])["online_p99_ratio"]
