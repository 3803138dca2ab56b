"""Is what is known of days on the disk when a node is gone, and is no file there ever the end of one?"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.domain.control import ControlLimits
from cotenant.domain.day import DAY_NS, Day, Program, TimeOfDay
from cotenant.domain.event import Event, NodeSettings
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, TenantView, Terms
from cotenant.format.days import encode_days
from cotenant.live.days import DaysFile
from cotenant.live.errand import Outcome
from cotenant.live.watch.days import EVERY_NS, SOON_NS, DaysKeeper
from cotenant.live.watch.windows import Objectives
from cotenant.machine.days import Days
from cotenant.machine.windows import Page
from cotenant.policy.predict.load import Load

DAY: Day = (TimeOfDay(3, 1.5, 2, 9, 2.5, 900.0),)
KNOWN = {Program(0, "serve.py"): DAY}
AHEAD_NS = 20_000 * DAY_NS + 6 * 3600 * SECOND_NS
"""It is six in the morning, by the wall clock, when the clock of these tests begins."""


class Node:
    """One life of a node: who is there, and the file that outlives it."""

    def __init__(self, home: Path, begin_ns: Instant = 10**12, ahead_ns: int = AHEAD_NS) -> None:
        self.turn, self.settings = 1, NodeSettings(2, 10**10, control=ControlLimits())
        self.here: list[Tenant] = []
        self.posted: list[Event] = []
        self.heard: list[str] = []
        self.now_ns, self.ended = begin_ns, 0
        self.ahead_ns = ahead_ns - begin_ns
        self.sent: list[tuple[Callable[[], None], Callable[[Outcome[None]], None]]] = []
        self.path = home / "days.json"
        file = DaysFile(self.path, self.heard.append)
        self.days = Days(file.read(), self.ahead_ns)
        self.objectives = Objectives(self, self, dict, self.posted.append, lambda: self.now_ns, self.days)
        self.keeper = DaysKeeper(file, self.days, self.objectives, self, self.heard.append, lambda: self.ahead_ns)

    def tenants(self) -> list[TenantView]:
        return [TenantView(one, connected=True) for one in self.here]

    def page(self, gpu: int, slot: int) -> Page:
        names = ("requests_sum_ns", "requests_over", "active_ns", "device_ns", "waited_ns", "overrun_ns")
        sums = {**dict.fromkeys(names, 0), "requests_began_ns": 0, "generation": 1, "requests_ended": self.ended}
        return {**sums, "request_buckets": [0]}

    def send(self, deed: Callable[[], None], told: Callable[[Outcome[None]], None]) -> None:
        self.sent.append((deed, told))

    def seat(self, *tasks: str) -> None:
        self.here = [
            Tenant(
                f"t{slot}",
                Terms(slot, 1, Kind.ONLINE, 2, 0, 0, 10**7, 0),
                TenantSpec(Kind.ONLINE, 2, slo_ns=10**7, task=task),
                1,
                0,
                0,
            )
            for slot, task in enumerate(tasks)
        ]
        self.turn += 1
        self.objectives.next_wakeup()

    def look(self, times: int, requests: int = 5) -> None:
        for _ in range(times):
            due = self.objectives.next_wakeup()
            assert due is not None
            self.objectives.wake(self.now_ns)
            self.now_ns += self.settings.control.period_ns
            self.ended += requests

    def write(self) -> None:
        """Let the loop and its errand do what is due."""
        self.keeper.wake(self.now_ns)
        while self.sent:
            deed, told = self.sent.pop(0)
            try:
                deed()
            except OSError as error:
                told(Outcome(error=error))
            else:
                told(Outcome())

    def load(self) -> Load:
        return self.objectives._control._desks[0].loads[0]


def test_a_node_that_is_started_again_knows_the_days_after_a_boot_too(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.seat("serve.py")
    first.look(101)
    first.keeper.close()
    second = Node(tmp_path, begin_ns=777, ahead_ns=AHEAD_NS + DAY_NS)
    second.seat("serve.py")
    second.look(1)
    bin_at_six = second.load().day[24]
    assert (bin_at_six.days, bin_at_six.windows) == (1, 1)
    assert bin_at_six.mean == pytest.approx(5, rel=0.02)
    assert sum(bool(one.days or one.windows) for one in second.load().day) == 1
    assert first.heard == second.heard == []


def test_it_is_written_soon_after_somebody_left_and_seldom_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.keeper.next_wakeup() is None, "a node where nothing is promised sleeps"
    node.seat("serve.py")
    node.write()
    began_ns = node.now_ns
    assert not node.path.exists(), "nothing was seen yet"
    node.look(20)
    assert node.keeper.next_wakeup() == began_ns + EVERY_NS
    node.seat()
    assert node.keeper.next_wakeup() == began_ns + SOON_NS
    node.write()
    assert list(DaysFile(node.path, node.heard.append).read()) == [Program(0, "serve.py")]
    assert node.keeper.next_wakeup() is None


def test_only_one_write_is_under_way_and_an_older_one_never_comes_last(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.seat("a")
    node.look(2)
    node.keeper.wake(node.now_ns)
    assert node.keeper.next_wakeup() is None
    node.seat("b")
    node.look(2)
    node.keeper.close()
    [(late, _)] = node.sent
    late()
    assert list(DaysFile(node.path, node.heard.append).read()) == [Program(0, "a"), Program(0, "b")]


def test_other_limits_do_not_cost_the_days(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.seat("serve.py")
    node.look(11)
    node.settings = NodeSettings(2, 10**10, control=ControlLimits(period_ns=200_000_000))
    node.turn += 1
    node.look(1)
    assert node.load().windows == 1
    assert node.load().day[24].windows == 6 + 1, "half as many, twice as long: eleven windows are between five and six"


def test_a_disk_that_takes_nothing_is_said_once_and_tried_again(tmp_path: Path) -> None:
    home = tmp_path / "state"
    node = Node(home)
    node.seat("serve.py")
    node.look(5)
    for _ in range(3):
        node.write()
        node.look(5)
        assert node.keeper.next_wakeup() == node.now_ns - 5 * node.settings.control.period_ns + EVERY_NS
    [sentence] = node.heard
    assert "could not be kept (No such file or directory)" in sentence
    home.mkdir()
    node.write()
    assert node.path.exists()
    node.keeper.close()
    assert len(node.heard) == 1


def test_a_set_clock_moves_the_days_with_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.seat("serve.py")
    node.look(3)
    node.ahead_ns += 3600 * SECOND_NS
    node.write()
    node.look(3)
    assert [place for place, one in enumerate(node.load().day) if one.windows] == [24, 28]


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_lies_there_a_node_starts_and_it_is_set_aside(tmp_path: Path, data: bytes) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    path, heard = tmp_path / "days.json", list[str]()
    path.write_bytes(data)
    file = DaysFile(path, heard.append)
    assert file.read() == {}
    [sentence] = heard
    assert "set aside as days.json.damaged-1; times of day are learned anew" in sentence
    assert (tmp_path / "days.json.damaged-1").read_bytes() == data
    file.write(KNOWN, 1)
    assert DaysFile(path, heard.append).read() == KNOWN
    assert len(heard) == 1


def test_what_is_sound_of_a_damaged_file_is_on_the_disk_again_at_once(tmp_path: Path) -> None:
    path, heard = tmp_path / "days.json", list[str]()
    for number in (1, 2):
        path.write_bytes(encode_days({**KNOWN, Program(0, "bad"): DAY}).replace(b'"bad"', b"17"))
        assert DaysFile(path, heard.append).read() == KNOWN
        assert f"damaged-{number}; the node goes on with the 1 program that" in heard[-1]
    assert DaysFile(path, heard.append).read() == KNOWN
    assert len(heard) == 2


def test_a_directory_in_its_place_is_set_aside_too(tmp_path: Path) -> None:
    path, heard = tmp_path / "days.json", list[str]()
    path.mkdir()
    file = DaysFile(path, heard.append)
    assert file.read() == {}
    assert "cannot be read (Is a directory)" in heard[0]
    file.write(KNOWN, 1)
    assert path.is_file()


def test_what_cannot_be_set_aside_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path, heard = tmp_path / "days.json", list[str]()
    path.write_bytes(b"a letter")
    monkeypatch.setattr(Path, "rename", refuse)
    file = DaysFile(path, heard.append)
    assert file.read() == {}
    file.write(KNOWN, 1)
    assert path.read_bytes() == b"a letter"
    assert "could not be set aside" in heard[0]


def test_threads_that_write_at_once_leave_the_latest(tmp_path: Path) -> None:
    file = DaysFile(tmp_path / "days.json", list[str]().append)
    some = [{Program(0, str(number)): DAY} for number in range(8)]
    threads = [threading.Thread(target=file.write, args=(known, number)) for number, known in enumerate(some)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read() == some[-1]
    assert [one.name for one in tmp_path.iterdir()] == ["days.json"]
