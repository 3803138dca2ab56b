"""Tests of `cotenant top` with and without a daemon, in narrow terminals."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cotenant import _native
from cotenant.cli import main, top
from cotenant.gate import tenant_table
from cotenant.gate.activity import DeviceSnapshot, GateCounts, GateState, TenantActivity, activity_between
from cotenant.gate.grant import Kind
from cotenant.gate.ledger import LedgerAccount, LedgerSnapshot
from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node import wire
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.node.directories import Directories
from cotenant.node.model.event import NodeSettings, NodeStarted, TenantJoined, TenantsPaused
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.units.histogram import Recorder
from cotenant.units.instant import SECOND_NS
from cotenant.units.share import WHOLE_PPM
from tests.support.process_pages import Registry

pytestmark = pytest.mark.live

WEB, JOB = GateEntry(0, 1, 1, online=True), GateEntry(1, 1, 7, online=False)
LAUNCH = (1000, 1000, 5000, 9000, 1)


class GatedDevice:
    """A device with one process of each tenant; the node reads copies of the pages that their gates write."""

    def __init__(self) -> None:
        self.registry = Registry(slots=2)
        self._job = subprocess.Popen(["sleep", "600"])
        attached = [self.registry.attach(0), self.registry.attach(1, self._job)]
        self._hooks = {attachment.index: hook for hook, attachment in attached}
        self.processes = [(attachment.index, attachment.generation) for _, attachment in attached]
        self.registry.tables.set_table(0, GateRules(entries=(WEB, JOB)))
        table = self.registry.tables.copy(0)
        assert table is not None
        self.memory = tenant_table.assemble_memory(table, {})

    def snapshot_at(self, now_ns: int) -> DeviceSnapshot:
        for index, hook in self._hooks.items():
            hook.page.memory[:] = tenant_table.process_pages(self.memory, index)
        snapshot = TenantPages(self.registry.processes, self.registry.tables).snapshot(0, now_ns)
        assert snapshot is not None
        return snapshot

    def close(self) -> None:
        self.registry.close()
        self._job.kill()
        self._job.wait()


@pytest.fixture
def device() -> Iterator[GatedDevice]:
    made = GatedDevice()
    yield made
    made.close()


def test_activity_is_computed_from_the_gate_counters(device: GatedDevice) -> None:
    web = _native.Gate(device.memory, *device.processes[0])
    before = device.snapshot_at(0)
    assert [activity.state for activity in activity_between(before, before)] == [GateState.QUIET, GateState.QUIET]
    for number in range(1, 11):
        assert not web.must_ask()
        web.announce(LAUNCH, number * 10_000)
    job = _native.Gate(device.memory, *device.processes[1])
    assert job.must_ask()
    passed, *_ = job.admit((90_000_000, 90_000_000, 0, 0, 1), 100_001, 100_001)
    assert not passed, "the kernel fits into no gap of the online tenant"
    [online, offline] = activity_between(before, device.snapshot_at(SECOND_NS))
    assert (online.launches_per_s, online.device_ppm, online.state) == (10, 10, GateState.RUNNING)
    assert (offline.launches_per_s, offline.state, offline.filled_of_idle_ppm) == (0, GateState.WAITING, 0)
    job.waited(100_001, 100_001 + 5000)
    [_, offline] = activity_between(before, device.snapshot_at(SECOND_NS))
    assert (offline.waits_per_s, offline.waited_p50_ns, offline.waited_p99_ns) == (1, 8192, 8192)


def test_a_missing_table_gives_no_snapshot_and_invalid_pages_no_counters(device: GatedDevice) -> None:
    pages = TenantPages(device.registry.processes, device.registry.tables)
    assert pages.snapshot(1, 0) is None
    for index, _ in device.processes:
        offset = tenant_table.page_offset(index)
        device.memory[offset : offset + PROCESS_BYTES] = b"x" * PROCESS_BYTES
    snapshot = device.snapshot_at(0)
    assert [snapshot.counts_of(entry) for entry in (WEB, JOB)] == [GateCounts()] * 2


@pytest.mark.parametrize("width, cells", [(80, 10), (100, 14)])
def test_tables_keep_all_columns_in_a_narrow_terminal(width: int, cells: int) -> None:
    widest = TenantActivity(
        95, 10**6, 9, False, GateState.WAITING, 123_456, 1_234_567, 999_999, 999_999, 99_999, 1 << 33, 1 << 33,
        123_456, 1 << 33, 1 << 33, 99_999, 999_999, 123_456_789, 349_999, 12_345, 3, 0,
    )  # fmt: skip
    held = {95: LedgerAccount(95, 10**6, 1023 << 20)}
    tenants = [("t" * 64, widest), ("web", widest)]
    device = top.DeviceActivity(7, "n" * 14, GateRules(delay_ppm=666_667), tenants, "overlimit: memory", 80 << 30, held)
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(top.top_tables(top.NodeActivity(1.0, [device]), width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith(("tttttttttt", "ttttttttt…", "web ")) and ":" not in line]
    extra = int(width == 100)  # the column MEMORY, in wide terminals
    assert [len(row.split()) for row in rows] == [10 + extra, 10 + extra, 10, 10]
    assert ("1,023MiB" in captured.get()) == bool(extra)
    assert ", 2 tenants, 2GiB of 80GiB held" in captured.get()
    assert "\noverlimit: memory\n" in captured.get()
    assert all("…" not in line.removeprefix("t" * (cells - 1) + "…") for line in rows), "only names are cut"
    assert "3 stale admissions, please report it" in captured.get()
    assert "delay 66.7% (online share 60%)" in " ".join(captured.get().split())


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directories:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setattr(top, "pause", lambda _: None)
    directories = Directories(tmp_path / "run", tmp_path / "state")
    directories.runtime.mkdir()
    directories.state.mkdir()
    return directories


def test_top_without_tenants(directories: Directories, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 75, "top exits if there is no node"
    assert "no node answers" in capsys.readouterr().err
    for words in (["--seconds", "0"], ["--seconds", "2", "--once"]):
        assert main(["top", *words]) == 2


def test_top_shows_what_the_node_answers(
    directories: Directories, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = NodeMachine()
    started = NodeStarted(NodeSettings(4, 10**10, gpus=(Gpu("v100", 1 << 34),)), "test", 0)
    spec = TenantSpec(Kind.OFFLINE, 7, "job")
    for event in (started, TenantJoined(1, 11, 1000, spec), TenantsPaused(2, 1000, False, ("job",), False, True)):
        machine.handle(event, now=1)
    [view] = machine.tenants()
    unknown_entry = GateEntry(3, 9, 8, online=False)
    entries = (GateEntry(0, 1, 7, False, paused=view.tenant.paused), unknown_entry)
    counts = {0: GateCounts(1), 3: GateCounts(9)}
    snapshot = DeviceSnapshot(0, 0, GateRules(entries=entries), counts)
    ledger = LedgerSnapshot(0, 0, {0: LedgerAccount(0, 1, 1 << 20)})
    activity = wire.Activity(wire.VERSION, [wire.GpuActivity(snapshot, ledger, {})], is_restricted=True)
    tenant_list = wire.TenantList(
        wire.VERSION, "test", 1, machine.tenants(), [], 0, 1, 4, list(machine.settings.gpus), Recorder().histogram(),
        machine.rules, machine.watches(),
    )  # fmt: skip
    monkeypatch.setattr(top, "read_activity", lambda directories: activity)
    monkeypatch.setattr(top, "list_tenants", lambda directories: tenant_list)
    assert main(["top", "--seconds", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "cotenant: only your own tenants are shown, because you do not operate this node\n"
    snapshots = [json.loads(line) for line in captured.out.splitlines()]
    assert len(snapshots) == 2
    [device] = snapshots[0]["devices"]
    assert (device["name"], device["held_bytes"]) == ("v100", 1 << 20)
    assert device["rules"]["policy"] == "fill"
    assert [(row["name"], row["state"]) for row in device["tenants"]] == [("job", "paused"), ("slot 3/9", "quiet")]
    activities = list(top.watch(directories, 1))
    assert msgspec.json.encode(top.top_json(activities[0]))
    assert activities[0].devices[0].rules.spin_ppm == 35 * WHOLE_PPM // 100
