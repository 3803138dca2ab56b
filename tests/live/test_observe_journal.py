"""Are a node's events read along over new segments, restarts and damage, and its log written without ever waiting?"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.apps.events import Wanted, happening_line, happenings
from cotenant.cli import main
from cotenant.domain import action
from cotenant.domain.event import Event, NodeSettings, NodeStarted, NodeStopping, TenantJoined, TenantLeft
from cotenant.domain.gpu import Gpu
from cotenant.domain.happening import Happening, Level, What
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format.journal import TurnReader
from cotenant.host import Host
from cotenant.live.clock import rfc3339, time_of_day
from cotenant.live.directory import Places
from cotenant.live.journal import FileJournal, Recovery
from cotenant.live.observe import log as logs
from cotenant.live.observe.log import NodeLog
from cotenant.live.observe.tail import JournalTail
from cotenant.machine.node import NodeMachine

UNIX_NS = 1_700_000_000_000_000_000
SETTINGS = NodeSettings(4, 10, gpus=(Gpu("a", 1 << 30), Gpu("b", 1 << 30)))
STARTED = NodeStarted(SETTINGS, "1.0", UNIX_NS)


class Node:
    """A machine with a real journal; nothing is carried out."""

    def __init__(self, places: Places, limit_bytes: int = 1 << 30) -> None:
        places.state.mkdir(parents=True, exist_ok=True)
        self.machine = NodeMachine()
        for turn in Recovery(places.journal, TurnReader).turns():
            self.machine.handle(turn.event, now=turn.now)
        self.journal = FileJournal(places.journal, limit_bytes)
        deeds = dict.fromkeys(self._kinds(), lambda action: None)
        self._host = Host(self.machine, deeds, self.journal)
        self._now = self.machine.turn * 1000

    def _kinds(self) -> list[type]:
        kinds = [kind for kind in vars(action).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        return [kind for kind in kinds if "cause" in kind.__struct_fields__]

    def tell(self, *events: Event) -> None:
        for event in events:
            self._now += 1000
            self._host.turn(event, self._now)


def joins(peer: int, name: str) -> TenantJoined:
    return TenantJoined(peer, 10 + peer, 0, TenantSpec(Kind.OFFLINE, 7, name))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    return Places(tmp_path / "run", tmp_path / "state")


def told(found: Iterator[Happening]) -> list[str]:
    return [each.text for each in found]


def read(places: Places, wanted: Wanted = Wanted()) -> tuple[list[str], list[str]]:  # noqa: B008  it is frozen
    said: list[str] = []
    return told(happenings(places, wanted, said.append, follow=False)), said


def test_events_are_told_from_the_journal_with_the_time_of_day(places: Places) -> None:
    node = Node(places)
    node.tell(STARTED, joins(1, "web"), TenantLeft(1, "exit 0"), NodeStopping("told to"))
    found = list(happenings(places, Wanted(), print, follow=False))
    when = time_of_day(UNIX_NS + 1000)
    assert [happening_line(each) for each in found] == [
        f"{time_of_day(UNIX_NS)} node 1.0 started: 4 slots, 2 GPUs [turn 1]",
        f"{when} web joined in slot 0/1 on GPU 0: offline priority 7 [turn 2]",
        f"{when} web left: exit 0 [turn 3]",
        f"{when} node stops: told to [turn 4]",
    ]
    assert rfc3339(UNIX_NS) == "2023-11-14T22:13:20.000Z"


def test_only_what_is_wanted_is_told(places: Places) -> None:
    node = Node(places)
    node.tell(STARTED, joins(1, "web"), joins(2, "job"))
    web, job = (
        "web joined in slot 0/1 on GPU 0: offline priority 7",
        "job joined in slot 1/1 on GPU 1: offline priority 7",
    )
    assert read(places, Wanted(tenant="web"))[0] == [web]
    assert read(places, Wanted(gpu=1))[0] == [job]
    assert read(places, Wanted(since_ns=1)) == ([], []), "it was a while ago"
    assert len(read(places, Wanted(since_ns=1 << 62))[0]) == 3


def test_following_goes_over_new_segments_and_restarts_without_losing_or_repeating_anything(places: Places) -> None:
    node = Node(places, limit_bytes=1)
    tail = JournalTail(places.journal, print)
    seen: list[int] = []

    def look() -> None:
        seen.extend(turn.now for turn in tail.turns() if not is_head(turn.event))

    node.tell(STARTED)
    look()
    for number in range(40):
        node.tell(joins(number, f"t{number}"), TenantLeft(number, "exit 0"))
        if number % 3 == 0:
            look()
    node.journal.close()
    look()
    with places.journal.open("ab") as file:
        file.write(b"\x07\x00")  # its writer died
    look()
    assert tail.torn_bytes == 2
    recovery = Recovery(places.journal, TurnReader)
    list(recovery.turns())
    recovery.mend()
    again = Node(places)
    again.tell(STARTED)
    look()
    assert seen == [1000 * (turn + 1) for turn in range(len(seen))], "every turn once, in order"
    assert len(seen) == again.machine.turn
    tail.close()


def is_head(event: Event) -> bool:
    return type(event).__name__ == "NodeRestored"


def test_who_sleeps_through_two_segments_is_told_how_much_is_missing(places: Places) -> None:
    node = Node(places, limit_bytes=1)
    node.tell(STARTED)
    follower = happenings(places, Wanted(), print, follow=True)
    assert next(follower).what is What.STARTED
    for number in range(60):
        node.tell(joins(number, "t"), TenantLeft(number, "exit 0"))
    seen = [next(follower)]
    while seen[-1].turn < node.machine.turn:
        seen.append(next(follower))
    [gap] = [each for each in seen if each.what is What.GAP]
    missing = int(gap.text.split()[0])
    turns = {each.turn for each in seen} - {gap.turn}
    assert missing + len(turns) == node.machine.turn - 1, "all but the start, which was seen before"
    follower.close()


def test_turns_before_the_oldest_segment_need_no_start_to_know_the_time(places: Places) -> None:
    node = Node(places, limit_bytes=1)
    node.tell(STARTED)
    for number in range(60):
        node.tell(joins(number, "t"), TenantLeft(number, "exit 0"))
    places.runtime.mkdir()
    found = list(happenings(places, Wanted(), print, follow=False))
    assert found
    assert {each.unix_ns for each in found} == {0}, "nobody knows"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    places.clock.write_text(json.dumps({"boot": boot, "offset_ns": 5}))
    found = list(happenings(places, Wanted(), print, follow=False))
    assert all(each.unix_ns > 10**18 for each in found), "by the clock that the node keeps"


def test_damage_is_said_and_what_is_sound_is_told(places: Places) -> None:
    node = Node(places)
    node.tell(STARTED, joins(1, "web"))
    size_bytes = places.journal.stat().st_size
    node.tell(joins(2, "job"), joins(3, "more"))
    data = bytearray(places.journal.read_bytes())
    data[size_bytes + 20] ^= 0xFF
    places.journal.write_bytes(data)
    found, said = read(places)
    assert [text.split()[0] for text in found] == ["node", "web"]
    assert len(said) == 1
    assert "is damaged at byte" in said[0]
    places.journal.write_bytes(data[: size_bytes + 7])
    found, said = read(places)
    assert len(found) == 2
    assert said == ["the journal ends in 7 bytes that are no whole turn; they are not shown"]


def test_the_command_tells_lines_and_records_and_refuses_what_cannot_be(
    places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events"]) == 75
    assert "no node has left a journal" in capsys.readouterr().err
    node = Node(places)
    node.tell(STARTED, joins(1, "web"), joins(2, "web"))
    assert main(["events", "--tenant", "web"]) == 0
    assert [line.split(" ", 2)[2] for line in capsys.readouterr().out.splitlines()] == [
        "web joined in slot 0/1 on GPU 0: offline priority 7 [turn 2]",
        "warning: web was refused: the name 'web' is taken by the tenant in slot 0 [turn 3]",
    ]
    assert main(["events", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[-1] == {
        "ts": "2023-11-14T22:13:20.000Z",
        "level": "warning",
        "event": "refused",
        "tenant": "web",
        "gpu": None,
        "turn": 3,
        "why": "name-taken",
        "text": "web was refused: the name 'web' is taken by the tenant in slot 0",
    }
    for wrong in (["--gpu", "x"], ["--since", "yesterday"]):
        assert main(["events", *wrong]) == 2
        assert capsys.readouterr().err.startswith(f"cotenant: {wrong[0]} = '{wrong[1]}': ")


# -- the log -------------------------------------------------------------------------------------------------------

HAPPENING = Happening(5, 7, What.LOST, "web is gone", "web", 0, level=Level.WARNING, unix_ns=UNIX_NS)


def test_text_and_json_use_the_same_words(tmp_path: Path) -> None:
    for form in ("text", "json"):
        with (tmp_path / form).open("wb") as file:
            log = NodeLog(form, descriptor=file.fileno())
            log.tell(HAPPENING)
            log.say("node stopped")
    assert (tmp_path / "text").read_text().splitlines() == [
        f"cotenant: {time_of_day(UNIX_NS)} warning: web is gone [turn 7]",
        "cotenant: node stopped",
    ]
    one, two = map(json.loads, (tmp_path / "json").read_text().splitlines())
    assert one == {
        "ts": "2023-11-14T22:13:20.000Z",
        "level": "warning",
        "event": "lost",
        "tenant": "web",
        "gpu": 0,
        "turn": 7,
        "why": "",
        "text": "web is gone",
    }
    assert (two["event"], two["text"], set(two)) == ("said", "node stopped", set(one))


def test_a_reader_that_stopped_reading_costs_lines_and_not_the_node() -> None:
    reader, writer = os.pipe()
    log = NodeLog("text", descriptor=writer)
    for _ in range(10_000):
        log.tell(HAPPENING)
    assert log.dropped > 0
    lost = log.dropped
    data = os.read(reader, 1 << 20)
    assert data.endswith(b"\n"), "no line is cut"
    log.say("and on")
    assert os.read(reader, 1 << 20).decode() == f"cotenant: {lost} lines of this log are lost\ncotenant: and on\n"
    os.close(reader)
    log.say("nobody is there")
    assert log.dropped == lost + 1
    os.close(writer)


def test_our_own_file_is_renamed_when_it_is_full_and_a_stranger_s_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "ROTATE_BYTES", 200)
    own, theirs = tmp_path / "node.log", tmp_path / "theirs.log"
    for path in (own, theirs):
        with path.open("ab") as file:
            log = NodeLog("text", own, descriptor=file.fileno())
            for number in range(100):
                log.say(f"line {number}")
    assert len(theirs.read_text().splitlines()) == 100
    assert own.stat().st_size <= 400
    kept = (tmp_path / "node.log.1").read_text() + own.read_text()
    lines = [int(line.split()[-1]) for line in kept.splitlines()]
    assert lines == list(range(lines[0], 100)), "the latest, without a gap"
