"""Preemption by the driver: every implementation of the port sets time slices and the device alternates accordingly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cotenant.errors import WorldError
from cotenant.node.daemon.preemption import NvidiaPreemption, SoftwarePreemption, TimeSlicePolicy, preemption_of
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.preemption import PreemptionLevel, TimeSlice
from cotenant.node.ports import Preemption
from cotenant.softgpu import manage
from cotenant.softgpu.sim.device import Device, Kernel, preset
from cotenant.softgpu.sim.preemption import SimulatedPreemption
from cotenant.units.instant import MILLISECOND_NS
from tests.support.node_processes import NodeHarness, until
from tests.support.software_gpus import PROGRAMS

KERNEL_NS = 100 * MILLISECOND_NS
PROGRAM = [sys.executable, str(PROGRAMS / "one_long_kernel.py")]


class Site:
    """A device, its port, and a function that runs two kernels of 100 ms in two processes and returns the switches."""

    def __init__(self, port: Preemption, compete: Callable[[], int]) -> None:
        self.port = port
        self.compete = compete


def simulated() -> Site:
    device, now_ns = Device(preset("v100")), 0
    streams = [device.create_stream(0, device.create_context(0, device.add_client(0))) for _ in range(2)]

    def compete() -> int:
        nonlocal now_ns
        before = device.count().switches
        for stream in streams:
            device.launch(now_ns, stream, Kernel(blocks=40, block_ns=KERNEL_NS, blocks_per_sm=1))
        now_ns += 4 * KERNEL_NS
        device.advance(now_ns)
        return device.count().switches - before

    return Site(SimulatedPreemption(device, lambda: now_ns), compete)


def live(directory: Path) -> Site:
    def compete() -> int:
        environ = {**os.environ, **manage.env(directory)}
        before = manage.inspect(directory, 0)["counters"]["switches"]
        running = [
            subprocess.Popen(PROGRAM, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            assert process.communicate()[0] == "done\n"
        return int(manage.inspect(directory, 0)["counters"]["switches"]) - int(before)

    return Site(SoftwarePreemption(directory, 0), compete)


@pytest.fixture(params=["simulated", pytest.param("live", marks=[pytest.mark.live, pytest.mark.timeout(180)])])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "simulated":
        yield simulated()
        return
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
    yield live(request.getfixturevalue("softgpu"))


def test_every_length_is_set_and_read(site: Site) -> None:
    assert site.port.level() is PreemptionLevel.TIME_SLICES
    assert site.port.time_slice() is TimeSlice.DEFAULT
    for time_slice in (*TimeSlice, TimeSlice.DEFAULT):
        site.port.set_time_slice(time_slice)
        assert site.port.time_slice() is time_slice


def test_shorter_slices_alternate_more_often(site: Site) -> None:
    """Two kernels of 100 ms: some 400 slices of 500 us, 100 of 2 ms, or 20 of 10 ms."""
    switches = []
    for time_slice in (TimeSlice.SHORT, TimeSlice.DEFAULT, TimeSlice.LONG):
        site.port.set_time_slice(time_slice)
        switches.append(site.compete())
    short, default, long = switches
    assert short > 2 * default > 4 * long > 0, switches


def test_nvidia_smi_is_called_as_its_manual_says() -> None:
    called: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> str:
        called.append(command[1:])
        return "GPU 0:\n  Compute policy\n    Timeslice : Short\n" if command[-1] == "--list" else ""

    port = NvidiaPreemption("GPU-1", run)
    assert port.level() is PreemptionLevel.TIME_SLICES
    assert port.time_slice() is TimeSlice.SHORT
    port.set_time_slice(TimeSlice.LONG)
    assert called[-2:] == [
        ["compute-policy", "-i", "GPU-1", "--list"],
        ["compute-policy", "-i", "GPU-1", "--set-timeslice=3"],
    ]


def test_without_the_program_only_launches_can_wait() -> None:
    def run(_command: Sequence[str]) -> str:
        raise WorldError("nvidia-smi ended with 3: Insufficient Permissions")

    port = NvidiaPreemption("GPU-1", run)
    assert port.level() is PreemptionLevel.LAUNCHES
    with pytest.raises(WorldError, match="Permissions"):
        port.set_time_slice(TimeSlice.SHORT)
    assert SoftwarePreemption(Path("/nonexistent"), 0).level() is PreemptionLevel.LAUNCHES
    assert preemption_of(Gpu("v100", 1 << 30), 0, [Path("/nonexistent")], {"PATH": ""}) is None


def test_a_device_that_cannot_be_set_is_reported_and_used() -> None:
    reported: list[str] = []
    policy = TimeSlicePolicy(TimeSlice.SHORT, lambda _gpu, _index: None, reported.append)
    policy.begin([Gpu("v100", 1 << 30)])
    policy.close()
    assert reported == ["v100: the length of its time slices cannot be set"]


@pytest.mark.live
@pytest.mark.timeout(180)
def test_a_node_sets_the_slices_and_restores_the_default(node_harness: NodeHarness) -> None:
    assert node_harness.run("softgpu", "create", "--gpu", "v100").returncode == 0
    try:
        port = SoftwarePreemption(node_harness.directories.runtime / "softgpu", 0)
        node = node_harness.node("--time-slice", "short")
        until(lambda: port.time_slice() is TimeSlice.SHORT)
        node.terminate()
        node.wait()
        assert port.time_slice() is TimeSlice.DEFAULT
    finally:
        node_harness.run("softgpu", "destroy")
