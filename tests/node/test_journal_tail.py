"""Events are read across segments, restarts and damage of the journal, and the log never blocks the node."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.cli import main
from cotenant.gate.grant import Kind
from cotenant.node.client.events import EventFilter, event_line, read_events
from cotenant.node.client.journal_tail import JournalTail
from cotenant.node.daemon import log as logs
from cotenant.node.daemon.log import NodeLog
from cotenant.node.directories import Directories
from cotenant.node.host import NodeHost
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model import action
from cotenant.node.model.event import Event, NodeSettings, NodeStarted, NodeStopping, TenantJoined, TenantLeft
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.log_event import LogEvent, LogEventKind, LogLevel
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.runner.clock import local_time, rfc3339
from cotenant.runner.journal_file import FileJournal, Recovery

pytestmark = pytest.mark.live

UNIX_NS = 1_700_000_000_000_000_000
SETTINGS = NodeSettings(4, 10, gpus=(Gpu("a", 1 << 30), Gpu("b", 1 << 30)))
STARTED = NodeStarted(SETTINGS, "1.0", UNIX_NS)


class Node:
    """A machine with a real journal; nothing is carried out."""

    def __init__(self, directories: Directories, limit_bytes: int = 1 << 30) -> None:
        directories.state.mkdir(parents=True, exist_ok=True)
        self.machine = NodeMachine()
        for turn in Recovery(directories.journal, NodeJournalReader).turns():
            self.machine.handle(turn.event, now=turn.now)
        self.journal = FileJournal(directories.journal, limit_bytes)
        effects = dict.fromkeys(self._kinds(), lambda action: None)
        self._host = NodeHost(self.machine, effects, self.journal)
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
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directories:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    return Directories(tmp_path / "run", tmp_path / "state")


def texts_of(events: Iterator[LogEvent]) -> list[str]:
    return [log_event.text for log_event in events]


def read(directories: Directories, event_filter: EventFilter = EventFilter()) -> tuple[list[str], list[str]]:  # noqa: B008  it is frozen
    messages: list[str] = []
    return texts_of(read_events(directories, event_filter, messages.append, follow=False)), messages


def test_events_are_read_from_the_journal_with_wall_clock_time(directories: Directories) -> None:
    node = Node(directories)
    node.tell(STARTED, joins(1, "web"), TenantLeft(1, "exit 0"), NodeStopping("told to"))
    log_events = list(read_events(directories, EventFilter(), print, follow=False))
    when = local_time(UNIX_NS + 1000)
    assert [event_line(log_event) for log_event in log_events] == [
        f"{local_time(UNIX_NS)} node 1.0 started: 4 slots, 2 GPUs [turn 1]",
        f"{when} web joined in slot 0/1 on GPU 0: offline priority 7 [turn 2]",
        f"{when} web left: exit 0 [turn 3]",
        f"{when} node stops: told to [turn 4]",
    ]
    assert rfc3339(UNIX_NS) == "2023-11-14T22:13:20.000Z"


def test_events_are_filtered(directories: Directories) -> None:
    node = Node(directories)
    node.tell(STARTED, joins(1, "web"), joins(2, "job"))
    web, job = (
        "web joined in slot 0/1 on GPU 0: offline priority 7",
        "job joined in slot 1/1 on GPU 1: offline priority 7",
    )
    assert read(directories, EventFilter(tenant="web"))[0] == [web]
    assert read(directories, EventFilter(gpu=1))[0] == [job]
    assert read(directories, EventFilter(since_ns=1)) == ([], []), "it was a while ago"
    assert len(read(directories, EventFilter(since_ns=1 << 62))[0]) == 3


def test_following_crosses_segments_and_restarts_without_loss_or_repetition(
    directories: Directories,
) -> None:
    node = Node(directories, limit_bytes=1)
    tail = JournalTail(directories.journal, print)
    instants: list[int] = []

    def read_turns() -> None:
        instants.extend(turn.now for turn in tail.turns() if not is_head(turn.event))

    node.tell(STARTED)
    read_turns()
    for number in range(40):
        node.tell(joins(number, f"t{number}"), TenantLeft(number, "exit 0"))
        if number % 3 == 0:
            read_turns()
    node.journal.close()
    read_turns()
    with directories.journal.open("ab") as file:
        file.write(b"\x07\x00")  # its writer died
    read_turns()
    assert tail.torn_bytes == 2
    recovery = Recovery(directories.journal, NodeJournalReader)
    list(recovery.turns())
    recovery.truncate_torn_tail()
    again = Node(directories)
    again.tell(STARTED)
    read_turns()
    assert instants == [1000 * (turn + 1) for turn in range(len(instants))], "every turn once, in order"
    assert len(instants) == again.machine.turn
    tail.close()


def is_head(event: Event) -> bool:
    return type(event).__name__ == "NodeRestored"


def test_missed_segments_are_reported_with_the_number_of_turns(directories: Directories) -> None:
    node = Node(directories, limit_bytes=1)
    node.tell(STARTED)
    follower = read_events(directories, EventFilter(), print, follow=True)
    assert next(follower).what is LogEventKind.STARTED
    for number in range(60):
        node.tell(joins(number, "t"), TenantLeft(number, "exit 0"))
    log_events = [next(follower)]
    while log_events[-1].turn < node.machine.turn:
        log_events.append(next(follower))
    [gap] = [log_event for log_event in log_events if log_event.what is LogEventKind.GAP]
    missing = int(gap.text.split()[0])
    turns = {log_event.turn for log_event in log_events} - {gap.turn}
    assert missing + len(turns) == node.machine.turn - 1, "all but the start, which was seen before"
    follower.close()


def test_events_have_times_without_a_start_event(directories: Directories) -> None:
    node = Node(directories, limit_bytes=1)
    node.tell(STARTED)
    for number in range(60):
        node.tell(joins(number, "t"), TenantLeft(number, "exit 0"))
    directories.runtime.mkdir()
    log_events = list(read_events(directories, EventFilter(), print, follow=False))
    assert log_events
    assert {log_event.unix_ns for log_event in log_events} == {0}, "the wall-clock time is unknown"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    directories.clock.write_text(json.dumps({"boot": boot, "offset_ns": 5}))
    log_events = list(read_events(directories, EventFilter(), print, follow=False))
    assert all(log_event.unix_ns > 10**18 for log_event in log_events), "by the clock that the node keeps"


def test_damage_is_reported_and_valid_turns_are_read(directories: Directories) -> None:
    node = Node(directories)
    node.tell(STARTED, joins(1, "web"))
    size_bytes = directories.journal.stat().st_size
    node.tell(joins(2, "job"), joins(3, "more"))
    data = bytearray(directories.journal.read_bytes())
    data[size_bytes + 20] ^= 0xFF
    directories.journal.write_bytes(data)
    texts, messages = read(directories)
    assert [text.split()[0] for text in texts] == ["node", "web"]
    assert len(messages) == 1
    assert "is damaged at byte" in messages[0]
    directories.journal.write_bytes(data[: size_bytes + 7])
    texts, messages = read(directories)
    assert len(texts) == 2
    assert messages == ["the journal ends in 7 bytes of an incomplete turn, which is not shown"]


def test_command_prints_lines_or_records_and_refuses_bad_input(
    directories: Directories, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events"]) == 75
    assert "no node has left a journal" in capsys.readouterr().err
    node = Node(directories)
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

LOST_EVENT = LogEvent(5, 7, LogEventKind.LOST, "web is gone", "web", 0, level=LogLevel.WARNING, unix_ns=UNIX_NS)


def test_text_and_json_use_the_same_values(tmp_path: Path) -> None:
    for form in ("text", "json"):
        with (tmp_path / form).open("wb") as file:
            log = NodeLog(form, descriptor=file.fileno())
            log.write_event(LOST_EVENT)
            log.report("node stopped")
    assert (tmp_path / "text").read_text().splitlines() == [
        f"cotenant: {local_time(UNIX_NS)} warning: web is gone [turn 7]",
        "cotenant: node stopped",
    ]
    event_record, message_record = map(json.loads, (tmp_path / "json").read_text().splitlines())
    assert event_record == {
        "ts": "2023-11-14T22:13:20.000Z",
        "level": "warning",
        "event": "lost",
        "tenant": "web",
        "gpu": 0,
        "turn": 7,
        "why": "",
        "text": "web is gone",
    }
    assert (message_record["event"], message_record["text"], set(message_record)) == (
        "message",
        "node stopped",
        set(event_record),
    )


def test_blocked_log_reader_loses_lines_and_does_not_block_the_node() -> None:
    reader, writer = os.pipe()
    log = NodeLog("text", descriptor=writer)
    for _ in range(10_000):
        log.write_event(LOST_EVENT)
    assert log.dropped > 0
    lost = log.dropped
    data = os.read(reader, 1 << 20)
    assert data.endswith(b"\n"), "no line is cut"
    log.report("and on")
    assert os.read(reader, 1 << 20).decode() == f"cotenant: {lost} lines of this log were lost\ncotenant: and on\n"
    os.close(reader)
    log.report("nobody is there")
    assert log.dropped == lost + 1
    os.close(writer)


def test_own_log_file_is_rotated_and_a_foreign_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ROTATE_BYTES", 200)
    own, theirs = tmp_path / "node.log", tmp_path / "theirs.log"
    for path in (own, theirs):
        with path.open("ab") as file:
            log = NodeLog("text", own, descriptor=file.fileno())
            for number in range(100):
                log.report(f"line {number}")
    assert len(theirs.read_text().splitlines()) == 100
    assert own.stat().st_size <= 400
    kept = (tmp_path / "node.log.1").read_text() + own.read_text()
    lines = [int(line.split()[-1]) for line in kept.splitlines()]
    assert lines == list(range(lines[0], 100)), "the latest, without a gap"
