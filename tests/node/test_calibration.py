"""The node measures what sharing a device costs, and the gate uses the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.gate.rules import GatePolicy
from cotenant.node.daemon.monitor.calibrator import IDLE_NS, RETRY_NS, CalibrationFile, Calibrator
from cotenant.node.model.action import SetTenantTable
from cotenant.node.model.calibration import Calibration
from cotenant.node.model.event import Event, GpuCalibrated, NodeSettings, NodeStarted, SettingsChanged
from cotenant.node.model.gpu import Gpu
from cotenant.node.state.node import NodeMachine
from cotenant.runner.background import TaskResult
from cotenant.softgpu import manage
from cotenant.softgpu.costs import HARDWARE
from cotenant.units.toml import ShareOfWhole
from tests.support.mps_daemons import MpsHarness
from tests.support.node_processes import NodeHarness, until

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
DEVICE = Gpu("V100", 1 << 34, ("soft:0", "GPU-1"))
MEASURED = Calibration(
    driver="580.1", uuid="GPU-1", is_mps=False, switch_ns=40 * US, slice_ns=2 * MS, launch_ns=3 * US,
    event_record_ns=2 * US, event_query_ns=US, event_resolution_ns=500,
)  # fmt: skip


def changed(**values: Any) -> Calibration:
    return Calibration(**{field: getattr(MEASURED, field) for field in MEASURED.__struct_fields__} | values)


def settings(*gpus: Gpu, uses: bool = True) -> NodeSettings:
    return NodeSettings(4, SECOND, gpus=gpus, uses_calibration=uses)


def machine(*gpus: Gpu, uses: bool = True) -> NodeMachine:
    node = NodeMachine()
    node.handle(NodeStarted(settings(*gpus, uses=uses), "1", 0), now=1)
    return node


def table_after(node: NodeMachine, event: Event) -> SetTenantTable | None:
    tables = [action for action in node.handle(event, now=2) if isinstance(action, SetTenantTable)]
    return tables[0] if tables else None


# ---- decisions


def test_measured_switch_cost_replaces_that_of_the_settings() -> None:
    table = table_after(machine(DEVICE), GpuCalibrated(0, MEASURED))
    assert table is not None
    assert (table.gpu, table.rules.switch_ns, table.rules.policy) == (0, 40 * US, GatePolicy.FILL)


@pytest.mark.parametrize(
    "values, why",
    [
        ({"switch_ns": 1100 * US}, "a switch to another process and back takes 2.2ms, a time slice only 2ms"),
        ({"event_resolution_ns": 200 * US}, "the resolution of events is 200us"),
        ({"launch_ns": 150 * US}, "launching a kernel takes 150us"),
    ],
)
def test_gaps_are_not_filled_where_that_cannot_pay_off(values: dict[str, int], why: str) -> None:
    calibration = changed(**values)
    table = table_after(machine(DEVICE), GpuCalibrated(0, calibration))
    assert table is not None
    assert table.rules.policy is GatePolicy.STRICT
    assert calibration.gap_filling_loss.startswith(why)
    assert "gaps are not filled" in calibration.describe()


def test_mps_that_lets_processes_take_turns_is_not_effective() -> None:
    assert changed(is_mps=True).has_ineffective_mps
    assert not changed(is_mps=True, switch_ns=US).has_ineffective_mps
    assert not changed(is_mps=True, switch_ns=5 * MS, slice_ns=0).gap_filling_loss


@pytest.mark.parametrize(
    "effect_ppm, ignored_ppm, text",
    [
        (None, 0, "the effect of MPS priorities is unknown"),
        (0, 1_000_000, "a lower MPS priority avoids 0 % of the delay"),
        (400_000, 600_000, "a lower MPS priority avoids 40 % of the delay"),
        (1_000_000, 0, "a lower MPS priority avoids 100 % of the delay"),
    ],
)
def test_gate_receives_the_part_of_priorities_without_effect(
    effect_ppm: int | None, ignored_ppm: int, text: str
) -> None:
    calibration = changed(is_mps=True, switch_ns=0, priority_effect_ppm=effect_ppm)
    table = table_after(machine(DEVICE), GpuCalibrated(0, calibration))
    assert table is not None
    assert table.rules.ignored_priority_ppm == ignored_ppm
    assert text in calibration.describe()
    assert "priorit" not in changed().describe()


def test_settings_that_state_the_costs_have_precedence() -> None:
    node = machine(DEVICE, uses=False)
    assert table_after(node, GpuCalibrated(0, MEASURED)) is None
    assert node.snapshot().calibrations == ()


def test_unknown_device_is_ignored() -> None:
    assert table_after(machine(DEVICE), GpuCalibrated(3, MEASURED)) is None


def test_measurements_outlive_a_restart_and_a_snapshot_but_not_another_device() -> None:
    node = machine(DEVICE)
    node.handle(GpuCalibrated(0, MEASURED), now=2)
    restored = NodeMachine()
    restored.handle(node.snapshot(), now=3)
    restored.handle(NodeStarted(settings(DEVICE), "1", 0), now=4)
    assert restored.snapshot().calibrations == (GpuCalibrated(0, MEASURED),)
    other = Gpu("V100", 1 << 34, ("soft:0", "GPU-2"))
    restored.handle(SettingsChanged(settings(other), "another device"), now=5)
    assert restored.snapshot().calibrations == ()


# ---- the file


def test_results_are_kept_by_device_driver_and_mode(tmp_path: Path) -> None:
    file = CalibrationFile(tmp_path / "calibration.json")
    assert file.read() == []
    file.add(MEASURED)
    file.add(changed(is_mps=True))
    file.add(changed(driver="590.1"))
    assert file.find("GPU-1", "590.1", is_mps=False) == changed(driver="590.1")
    assert file.find("GPU-1", "580.1", is_mps=False) is None, "it is measured again with another driver"
    assert file.find("GPU-1", "580.1", is_mps=True) == changed(is_mps=True)


@pytest.mark.parametrize("content", [b"", b"{", b'[["580.1"]]', b"[1]", b"\xff"])
def test_damaged_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    assert CalibrationFile(path).read() == []


# ---- when it measures


class Tasks:
    """Background tasks that end when the test says so."""

    def __init__(self) -> None:
        self.done: list[Callable[[TaskResult[Any]], None]] = []

    def submit(self, call: Callable[[], Any], done: Callable[[TaskResult[Any]], None]) -> None:
        del call
        self.done.append(done)

    def close(self) -> None:
        pass

    def end(self, result: Calibration | Exception) -> None:
        outcome: TaskResult[Any] = TaskResult()
        if isinstance(result, Exception):
            outcome.error = result
        else:
            outcome.value = result
        self.done.pop()(outcome)


class Node:
    """A node with devices and tenants, as the calibrator reads it."""

    def __init__(self, *gpus: Gpu, uses: bool = True) -> None:
        self.settings = settings(*gpus, uses=uses)
        self.used: list[int] = []

    def tenants(self) -> list[Any]:
        class Grant:
            def __init__(self, gpu: int) -> None:
                self.tenant = type("Tenant", (), {"grant": type("Grant", (), {"gpu": gpu})})

        return [Grant(gpu) for gpu in self.used]


def calibrator(node: Node, tmp_path: Path) -> tuple[Calibrator, Tasks, list[Event]]:
    tasks, posted = Tasks(), list[Event]()
    file = CalibrationFile(tmp_path / "calibration.json")
    return Calibrator(node, tasks, [], dict, file, posted.append), tasks, posted  # type: ignore[arg-type]


def test_device_is_measured_once_after_it_has_been_unused(tmp_path: Path) -> None:
    node = Node(DEVICE)
    timer, tasks, posted = calibrator(node, tmp_path)
    for now in (SECOND, SECOND + IDLE_NS - 1):
        timer.wake(now)
        assert not tasks.done
    timer.wake(SECOND + IDLE_NS)
    tasks.end(MEASURED)
    assert posted == [GpuCalibrated(0, MEASURED)]
    assert timer.next_wakeup() is None


def test_device_with_a_tenant_is_not_measured(tmp_path: Path) -> None:
    node = Node(DEVICE)
    timer, tasks, _ = calibrator(node, tmp_path)
    timer.wake(SECOND)
    node.used = [0]
    timer.wake(SECOND + 2 * IDLE_NS)
    node.used = []
    timer.wake(SECOND + 3 * IDLE_NS)
    assert not tasks.done, "the time begins when the tenant has left"
    timer.wake(SECOND + 4 * IDLE_NS)
    assert tasks.done


def test_measurement_ends_when_a_tenant_joins_and_is_repeated(tmp_path: Path) -> None:
    node = Node(DEVICE)
    timer, tasks, posted = calibrator(node, tmp_path)
    timer.wake(SECOND)
    timer.wake(SECOND + IDLE_NS)
    node.used = [0]
    timer.wake(SECOND + IDLE_NS + MS)
    tasks.end(RuntimeError("it was killed"))
    assert not posted
    node.used = []
    timer.wake(20 * SECOND)
    timer.wake(20 * SECOND + IDLE_NS)
    tasks.end(MEASURED)
    assert posted == [GpuCalibrated(0, MEASURED)]


def test_failed_measurement_is_repeated_a_few_times(tmp_path: Path) -> None:
    timer, tasks, posted = calibrator(Node(DEVICE), tmp_path)
    now = SECOND
    attempts = 0
    for _ in range(100):
        timer.wake(now)
        if tasks.done:
            attempts += 1
            tasks.end(RuntimeError("no driver"))
            timer.wake(now + IDLE_NS)
            assert not tasks.done, "it waits before the next attempt"
        now += RETRY_NS // 4
    assert not posted
    assert 1 < attempts < 10


def test_node_whose_settings_state_the_costs_measures_nothing(tmp_path: Path) -> None:
    timer, tasks, _ = calibrator(Node(DEVICE, uses=False), tmp_path)
    timer.wake(SECOND)
    timer.wake(SECOND + 2 * IDLE_NS)
    assert not tasks.done
    assert timer.next_wakeup() is None


# ---- on a software GPU


@pytest.fixture
def node_harness() -> Iterator[NodeHarness]:
    with NodeHarness() as harness:
        assert harness.run("softgpu", "create", "--gpu", "v100", "--costs", "hardware").returncode == 0
        yield harness
        harness.run("softgpu", "destroy")


@pytest.mark.live
def test_program_measures_a_software_gpu(node_harness: NodeHarness) -> None:
    environ = {**os.environ, **manage.env(node_harness.directories.runtime / "softgpu")}
    command = [sys.executable, "-m", "cotenant.node.daemon.monitor.calibration_program"]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout)
    assert measured["event_resolution_ns"] == 500
    assert measured["switch_ns"] > 50 * US, "a switch takes 100 us"
    assert measured["slice_ns"] > measured["switch_ns"]
    assert min(measured.values()) > 0


@pytest.mark.live
@pytest.mark.parametrize("effect_ppm", [0, 500_000, 1_000_000])
def test_program_finds_the_effect_of_mps_priorities(tmp_path: Path, effect_ppm: int) -> None:
    costs = msgspec.structs.replace(
        HARDWARE, device=msgspec.structs.replace(HARDWARE.device, priority_effect=ShareOfWhole(effect_ppm))
    )
    harness = MpsHarness(tmp_path, costs=costs)
    try:
        assert harness.control("-d").returncode == 0
        command = [sys.executable, "-m", "cotenant.node.daemon.monitor.calibration_program", "mps"]
        run = subprocess.run(command, env=harness.environment(), capture_output=True, text=True, check=True)
    finally:
        harness.close()
    assert json.loads(run.stdout)["priority_effect_ppm"] == pytest.approx(effect_ppm, abs=150_000)


@pytest.mark.live
def test_node_measures_its_device_and_doctor_shows_it(node_harness: NodeHarness) -> None:
    node_harness.node()

    def shows() -> bool:
        return "GPU 0: a switch between processes takes" in node_harness.run("doctor").stdout

    until(shows)
    events = node_harness.run("events").stdout
    assert "GPU 0 was measured" in events
