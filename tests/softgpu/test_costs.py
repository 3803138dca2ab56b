"""Costs of software GPUs: names, files, packing, and launch latency in the device model."""

from pathlib import Path

import msgspec
import pytest

from cotenant.errors import ConfigError
from cotenant.softgpu.costs import HARDWARE, IDEAL, read_costs
from cotenant.softgpu.sim.device import Device, Kernel, OpKind, preset

US = 1000


def test_names_and_files_are_read(tmp_path: Path) -> None:
    assert read_costs("ideal") == IDEAL
    assert read_costs("hardware") == HARDWARE
    file = tmp_path / "costs.toml"
    file.write_text('[device]\nswitch = "250us"\npriority_effect = "0%"\n[driver]\ncall = "5us"\n')
    costs = read_costs(str(file))
    assert (int(costs.device.switch), int(costs.device.priority_effect), int(costs.driver.call)) == (
        250 * US,
        0,
        5 * US,
    )
    assert costs.device.slice == IDEAL.device.slice
    assert costs.nvml == IDEAL.nvml


@pytest.mark.parametrize(
    "text, field",
    [
        ('[device]\nswitch = "2h"\n', "device.switch"),
        ('[device]\nslice = "1us"\n', "device.slice"),
        ('[device]\nclock_drop = "80%"\n', "device.clock_drop"),
        ('[driver]\ncall = "2ms"\n', "driver.call"),
        ('[driver]\nspeed = "2ms"\n', "speed"),
        ('[kernels]\ndata_spread = "40%"\n', "kernels.data_spread"),
    ],
)
def test_bad_files_are_refused_by_field(text: str, field: str, tmp_path: Path) -> None:
    file = tmp_path / "costs.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=field):
        read_costs(str(file))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="hardware"):
        read_costs("free")


def test_every_cost_is_packed_for_the_server() -> None:
    words = memoryview(HARDWARE.packed()).cast("Q").tolist()
    assert words == [
        *(100 * US, 2000 * US, 3 * US, 500_000, 70_000, 30_000, 100_000, 500_000),
        *(2 * US, 2 * US, US, 500, 20_000),
        *(300_000 * US, 1_000_000 * US),
        20_000,
    ]
    assert memoryview(IDEAL.packed()).cast("Q").tolist() == [10 * US, 2000 * US, *(0,) * 5, 1_000_000, *(0,) * 8]


def latency(launch_ns: int) -> tuple[Device, int]:
    device = Device(msgspec.structs.replace(preset("v100"), launch_ns=launch_ns))
    context = device.create_context(0, device.add_client(0))
    return device, device.create_stream(0, context)


def test_launch_latency_delays_an_idle_stream_and_is_hidden_in_a_busy_one() -> None:
    device, stream = latency(3 * US)
    kernel = Kernel(blocks=80, block_ns=10 * US, blocks_per_sm=1)
    first, second = device.launch(1 * US, stream, kernel), device.launch(2 * US, stream, kernel)
    assert device.next_change_ns() == 4 * US
    assert device.project_ns(first) == 14 * US
    assert device.project_ns(second) == 24 * US
    device.advance(30 * US)
    assert device.check() is None
    ends = [record.end_ns for record in device.drain() if record.kind is OpKind.KERNEL]
    assert ends == [14 * US, 24 * US]


def test_latencies_of_several_streams_pass_at_the_same_time() -> None:
    device, first_stream = latency(5 * US)
    context = device.create_context(0, device.add_client(0, 1))
    second_stream = device.create_stream(0, context)
    kernel = Kernel(blocks=1, block_ns=US, blocks_per_sm=1)
    device.launch(3 * US, second_stream, kernel)
    device.launch(3 * US, first_stream, kernel)
    device.launch(4 * US, second_stream, kernel)
    device.advance(100 * US)
    assert device.check() is None
    assert device.count().kernels == 3


def test_killing_a_client_forgets_work_on_its_way() -> None:
    device = Device(msgspec.structs.replace(preset("v100"), launch_ns=5 * US))
    client = device.add_client(0)
    stream = device.create_stream(0, device.create_context(0, client))
    device.launch(0, stream, Kernel(blocks=1, block_ns=US))
    device.kill_client(1 * US, client)
    assert device.next_change_ns() is None
    assert device.check() is None
