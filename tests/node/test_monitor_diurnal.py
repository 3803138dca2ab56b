"""Diurnal profiles survive the daemon, and no damaged file prevents its start."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.gate.grant import Grant, Kind
from cotenant.node.daemon.diurnal_file import DiurnalFile
from cotenant.node.daemon.monitor.diurnal import EVERY_NS, SOON_NS, DiurnalSaver
from cotenant.node.daemon.monitor.windows import ObjectiveMonitor
from cotenant.node.diurnal_format import encode_profiles
from cotenant.node.model.control import ControlLimits
from cotenant.node.model.event import Event, NodeSettings
from cotenant.node.model.tenant import Tenant, TenantSpec, TenantView
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.node.state.windows import Page
from cotenant.predict.diurnal_profile import DAY_NS, DiurnalBin, DiurnalProfile, Program
from cotenant.predict.load import Load
from cotenant.runner.background import TaskResult
from cotenant.units.instant import SECOND_NS, Instant

pytestmark = pytest.mark.live

DAY: DiurnalProfile = (DiurnalBin(3, 1.5, 2, 9, 2.5, 900.0),)
KNOWN = {Program(0, "serve.py"): DAY}
NAMES = (
    *("requests_sum_ns", "requests_over", "active_ns", "device_ns", "waited_ns", "overrun_ns"),
    *("delayed_ns", "undelayed_ns", "wanted_ns", "asked_ns", "launches", "cut_launches", "parts"),
)
"""The words of a gate page that the monitor reads."""
AHEAD_NS = 20_000 * DAY_NS + 6 * 3600 * SECOND_NS
"""It is six in the morning, by the wall clock, when the clock of these tests begins."""


class Node:
    """One run of a node: its tenants, and the file that outlives it."""

    def __init__(self, home: Path, begin_ns: Instant = 10**12, ahead_ns: int = AHEAD_NS) -> None:
        self.turn, self.settings = 1, NodeSettings(2, 10**10, control=ControlLimits())
        self.present: list[Tenant] = []
        self.posted: list[Event] = []
        self.received: list[str] = []
        self.now_ns, self.ended = begin_ns, 0
        self.ahead_ns = ahead_ns - begin_ns
        self.sent: list[tuple[Callable[[], None], Callable[[TaskResult[None]], None]]] = []
        self.path = home / "diurnal.json"
        file = DiurnalFile(self.path, self.received.append)
        self.profiles = DiurnalProfiles(file.read(), self.ahead_ns)
        self.objectives = ObjectiveMonitor(self, self, dict, self.posted.append, lambda: self.now_ns, self.profiles)
        self.saver = DiurnalSaver(
            file, self.profiles, self.objectives, self, self.received.append, lambda: self.ahead_ns
        )

    def tenants(self) -> list[TenantView]:
        return [TenantView(tenant, connected=True) for tenant in self.present]

    def page(self, gpu: int, slot: int) -> Page:
        sums = {**dict.fromkeys(NAMES, 0), "requests_began_ns": 0, "generation": 1, "requests_ended": self.ended}
        return {**sums, "request_buckets": [0]}

    def submit(self, call: Callable[[], None], done: Callable[[TaskResult[None]], None]) -> None:
        self.sent.append((call, done))

    def entry(self, *tasks: str) -> None:
        self.present = [
            Tenant(
                f"t{slot}",
                Grant(slot, 1, Kind.ONLINE, 2, 0, 0, 10**7, 0),
                TenantSpec(Kind.ONLINE, 2, slo_ns=10**7, task=task),
                1,
                0,
                0,
            )
            for slot, task in enumerate(tasks)
        ]
        self.turn += 1
        self.objectives.next_wakeup()

    def wake_monitor(self, times: int, requests: int = 5) -> None:
        for _ in range(times):
            due = self.objectives.next_wakeup()
            assert due is not None
            self.objectives.wake(self.now_ns)
            self.now_ns += self.settings.control.period_ns
            self.ended += requests

    def write(self) -> None:
        """Run the timer and its background task."""
        self.saver.wake(self.now_ns)
        while self.sent:
            work, on_done = self.sent.pop(0)
            try:
                work()
            except OSError as error:
                on_done(TaskResult(error=error))
            else:
                on_done(TaskResult())

    def load(self) -> Load:
        return self.objectives._control._devices[0].loads[0]


def test_restarted_node_reads_the_profiles_after_a_boot(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.entry("serve.py")
    first.wake_monitor(101)
    first.saver.close()
    second = Node(tmp_path, begin_ns=777, ahead_ns=AHEAD_NS + DAY_NS)
    second.entry("serve.py")
    second.wake_monitor(1)
    bin_at_six = second.load().day[24]
    assert (bin_at_six.days, bin_at_six.windows) == (1, 1)
    assert bin_at_six.mean == pytest.approx(5, rel=0.02)
    assert sum(bool(interval.days or interval.windows) for interval in second.load().day) == 1
    assert first.received == second.received == []


def test_file_is_written_soon_after_a_departure_and_rarely_otherwise(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.saver.next_wakeup() is None, "a node where nothing is promised sleeps"
    node.entry("serve.py")
    node.write()
    began_ns = node.now_ns
    assert not node.path.exists(), "no window measured yet"
    node.wake_monitor(20)
    assert node.saver.next_wakeup() == began_ns + EVERY_NS
    node.entry()
    assert node.saver.next_wakeup() == began_ns + SOON_NS
    node.write()
    assert list(DiurnalFile(node.path, node.received.append).read()) == [Program(0, "serve.py")]
    assert node.saver.next_wakeup() is None


def test_writes_are_serial_and_the_newest_is_last(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.entry("a")
    node.wake_monitor(2)
    node.saver.wake(node.now_ns)
    assert node.saver.next_wakeup() is None
    node.entry("b")
    node.wake_monitor(2)
    node.saver.close()
    [(late, _)] = node.sent
    late()
    assert list(DiurnalFile(node.path, node.received.append).read()) == [Program(0, "a"), Program(0, "b")]


def test_changed_limits_keep_the_profiles(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.entry("serve.py")
    node.wake_monitor(11)
    node.settings = NodeSettings(2, 10**10, control=ControlLimits(period_ns=200_000_000))
    node.turn += 1
    node.wake_monitor(1)
    assert node.load().windows == 1
    assert node.load().day[24].windows == 6 + 1, "half as many, twice as long: eleven windows are between five and six"


def test_failed_write_is_reported_once_and_retried(tmp_path: Path) -> None:
    home = tmp_path / "state"
    node = Node(home)
    node.entry("serve.py")
    node.wake_monitor(5)
    for _ in range(3):
        node.write()
        node.wake_monitor(5)
        assert node.saver.next_wakeup() == node.now_ns - 5 * node.settings.control.period_ns + EVERY_NS
    [sentence] = node.received
    assert "could not be written (No such file or directory)" in sentence
    home.mkdir()
    node.write()
    assert node.path.exists()
    node.saver.close()
    assert len(node.received) == 1


def test_changed_wall_clock_moves_the_profiles(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.entry("serve.py")
    node.wake_monitor(3)
    node.ahead_ns += 3600 * SECOND_NS
    node.write()
    node.wake_monitor(3)
    assert [index for index, interval in enumerate(node.load().day) if interval.windows] == [24, 28]


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_invalid_file_is_renamed_and_the_node_starts(tmp_path: Path, data: bytes) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    path, received = tmp_path / "diurnal.json", list[str]()
    path.write_bytes(data)
    file = DiurnalFile(path, received.append)
    assert file.read() == {}
    [sentence] = received
    assert "renamed to diurnal.json.damaged-1; diurnal profiles are learned anew" in sentence
    assert (tmp_path / "diurnal.json.damaged-1").read_bytes() == data
    file.write(KNOWN, 1)
    assert DiurnalFile(path, received.append).read() == KNOWN
    assert len(received) == 1


def test_valid_part_of_a_damaged_file_is_written_at_once(tmp_path: Path) -> None:
    path, received = tmp_path / "diurnal.json", list[str]()
    for number in (1, 2):
        path.write_bytes(encode_profiles({**KNOWN, Program(0, "bad"): DAY}).replace(b'"bad"', b"17"))
        assert DiurnalFile(path, received.append).read() == KNOWN
        assert f"damaged-{number}; the node continues with the 1 program that" in received[-1]
    assert DiurnalFile(path, received.append).read() == KNOWN
    assert len(received) == 2


def test_directory_instead_of_the_file_is_renamed(tmp_path: Path) -> None:
    path, received = tmp_path / "diurnal.json", list[str]()
    path.mkdir()
    file = DiurnalFile(path, received.append)
    assert file.read() == {}
    assert "cannot be read (Is a directory)" in received[0]
    file.write(KNOWN, 1)
    assert path.is_file()


def test_file_that_cannot_be_renamed_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path, received = tmp_path / "diurnal.json", list[str]()
    path.write_bytes(b"a letter")
    monkeypatch.setattr(Path, "rename", refuse)
    file = DiurnalFile(path, received.append)
    assert file.read() == {}
    file.write(KNOWN, 1)
    assert path.read_bytes() == b"a letter"
    assert "could not be renamed" in received[0]


def test_concurrent_writes_leave_the_latest(tmp_path: Path) -> None:
    file = DiurnalFile(tmp_path / "diurnal.json", list[str]().append)
    some = [{Program(0, str(number)): DAY} for number in range(8)]
    threads = [threading.Thread(target=file.write, args=(profiles, number)) for number, profiles in enumerate(some)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read() == some[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["diurnal.json"]
