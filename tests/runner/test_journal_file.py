"""The journal file survives crashes, torn writes, damage and full disks."""

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.errors import WorldError
from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.daemon.main import _recover
from cotenant.node.directories import Directories
from cotenant.node.host import NodeHost
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.event import SLOTS_LIMIT, Event, NodeSettings, NodeStarted, PeerLost, TenantJoined, TenantLeft
from cotenant.node.model.tenant import COMMAND_LIMIT, TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.runner.clock import LiveClock
from cotenant.runner.host import replay
from cotenant.runner.journal import MAGIC
from cotenant.runner.journal_file import FileJournal, Recovery
from cotenant.units.histogram import Histogram

pytestmark = pytest.mark.live

STARTED = NodeStarted(NodeSettings(4, 10**10), "test", 0)
SPEC = TenantSpec(Kind.OFFLINE, 7, command="test")


def turns_of(path: Path) -> list[NodeTurn]:
    with path.open("rb") as file:
        return list(NodeJournalReader(file.read))


def write_journal(path: Path, peers: int = 6, limit_bytes: int = 1 << 30) -> NodeMachine:
    """Write the journal of a node to which peers joined and every other one left; return its state machine."""
    machine = NodeMachine()
    journal = FileJournal(path, limit_bytes)
    host = NodeHost(machine, {}, journal)
    host._effects.update(dict.fromkeys(_all_actions(), lambda action: None))
    events: list[Event] = [STARTED]
    for peer in range(1, peers + 1):
        events.append(TenantJoined(peer, 100 + peer, 0, SPEC))
        if peer % 2:
            events.append(TenantLeft(peer, "exit 0"))
    for now, event in enumerate(events, 10):
        host.turn(event, now)
    journal.close()
    return machine


def _all_actions() -> list[type]:
    from cotenant.node.model.action import IssueGrant, Refuse, Revoke, SetNeighbourCount, Stop

    return [SetNeighbourCount, IssueGrant, Refuse, Revoke, Stop]


def directories_in(home: Path) -> Directories:
    (home / "run").mkdir()
    (home / "state").mkdir()
    return Directories(home / "run", home / "state")


def test_file_is_private_and_begins_with_its_magic_line(tmp_path: Path) -> None:
    FileJournal(tmp_path / "journal", 100).close()
    assert (tmp_path / "journal").read_bytes() == MAGIC
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600


def test_reopened_journal_continues(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for now in range(3):
        journal = FileJournal(path, 1 << 20)
        journal.append(now, PeerLost(now), [])
        journal.close()
    assert [turn.now for turn in turns_of(path)] == [0, 1, 2]


def test_intact_journal_reports_no_recovery(tmp_path: Path) -> None:
    recovery = Recovery(tmp_path / "journal", NodeJournalReader)
    assert list(recovery.turns()) == []
    assert recovery.truncate_torn_tail() == ""


@pytest.mark.parametrize("cut", [1, 3, 8, 9, 20])
def test_torn_tail_is_cut_and_reported(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    write_journal(path)
    all_turns = turns_of(path)
    os.truncate(path, path.stat().st_size - cut)
    recovery = Recovery(path, NodeJournalReader)
    sound = list(recovery.turns())
    assert sound == all_turns[: len(sound)]
    assert len(sound) < len(all_turns)
    message = recovery.truncate_torn_tail()
    assert "torn" in message
    assert str(path) in message
    assert "\n" not in message
    assert turns_of(path) == sound
    second = Recovery(path, NodeJournalReader)
    assert list(second.turns()) == sound
    assert second.truncate_torn_tail() == "", "a truncated journal has no torn tail"


def test_journal_continues_after_every_possible_tear(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write_journal(path, peers=2)
    all_turns = path.read_bytes()
    for size in range(len(all_turns)):
        path.write_bytes(all_turns[:size])
        recovery = Recovery(path, NodeJournalReader)
        replay(NodeMachine(), recovery.turns())
        recovery.truncate_torn_tail()
        journal = FileJournal(path, 1 << 20)
        journal.append(99, PeerLost(99), [])
        journal.close()
        assert turns_of(path)[-1] == NodeTurn(99, PeerLost(99), []), size
        path.unlink()


def recover(directories: Directories, messages: list[str]) -> tuple[NodeMachine, LiveClock]:
    return _recover(directories, messages.append)


def test_generations_of_a_damaged_journal_are_not_granted_again(tmp_path: Path) -> None:
    directories = directories_in(tmp_path)
    machine = write_journal(directories.journal)
    directories.journal.write_bytes(directories.journal.read_bytes() + b"not a turn, and more than a torn one\n")
    second, _ = recover(directories, [])
    assert [view.tenant for view in second.tenants()] == [view.tenant for view in machine.tenants()]
    held = {view.tenant.grant.slot for view in machine.tenants()}
    before, after = machine.snapshot().generations, second.snapshot().generations
    for slot, generation in enumerate(after):
        earlier = before[slot] if slot < len(before) else 0
        assert generation == earlier if slot in held else generation > earlier + 1000
    second.check()


def test_new_segment_is_synced_before_it_replaces_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = directories_in(tmp_path)
    write_journal(directories.journal)
    directories.journal.write_bytes(directories.journal.read_bytes() + b"not a turn, and more than a torn one\n")
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_sync(descriptor: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        calls.append("rename " + Path(source).name)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    recover(directories, [])
    assert calls[:2] == ["sync journal.new", "rename journal.new"]


def test_damaged_journal_is_renamed_and_its_valid_part_continues(tmp_path: Path) -> None:
    directories = directories_in(tmp_path)
    write_journal(directories.journal)
    all_turns = turns_of(directories.journal)
    content = bytearray(directories.journal.read_bytes())
    content[len(content) // 2] ^= 0xFF
    directories.journal.write_bytes(content)
    messages: list[str] = []
    machine, clock = recover(directories, messages)
    assert 0 < machine.turn < len(all_turns)
    [message] = messages
    assert "damaged" in message
    assert "journal.damaged-1" in message
    assert (directories.state / "journal.damaged-1").read_bytes() == content
    [head] = turns_of(directories.journal)
    assert head.event == machine.snapshot()
    assert clock.now() >= head.now
    machine.check()
    # The new journal is complete by itself, and a second start reports nothing.
    second, _ = recover(directories, messages)
    assert second.snapshot() == machine.snapshot()
    assert len(messages) == 1


def test_every_flipped_byte_is_detected_or_harmless(tmp_path: Path) -> None:
    directories = directories_in(tmp_path)
    write_journal(directories.journal, peers=3)
    all_turns = directories.journal.read_bytes()
    expected = turns_of(directories.journal)
    for position in range(0, len(all_turns), 3):
        content = bytearray(all_turns)
        content[position] ^= 0x55
        directories.journal.write_bytes(content)
        messages: list[str] = []
        machine, _ = recover(directories, messages)
        assert messages, f"byte {position} was changed without a message"
        assert machine.turn < len(expected)
        for file in directories.state.iterdir():
            file.unlink()


def test_repeated_damage_keeps_every_file(tmp_path: Path) -> None:
    directories = directories_in(tmp_path)
    for number in (1, 2, 3):
        directories.journal.write_bytes(b"this is not a journal\n")
        messages: list[str] = []
        machine, _ = recover(directories, messages)
        assert machine.turn == 0
        assert f"journal.damaged-{number}" in messages[0]


def test_segments_rotate_and_each_replays_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    machine = write_journal(path, peers=60, limit_bytes=1500)
    previous = path.with_name("journal.1")
    assert previous.exists()
    assert not path.with_name("journal.new").exists()
    alone = NodeMachine()
    assert replay(alone, turns_of(path)) >= 1
    assert alone.snapshot() == machine.snapshot()
    before = NodeMachine()
    replay(before, turns_of(previous))
    assert before.snapshot() == turns_of(path)[0].event, "a segment begins with the last state of the previous one"


def test_crash_during_a_rotation_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    machine = write_journal(path)
    all_turns = turns_of(path)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for step in ("os.fsync", "os.link", "pathlib.Path.rename"):
        journal = FileJournal(path, 1)
        with monkeypatch.context() as patch:
            patch.setattr(step, die)
            with pytest.raises(KeyboardInterrupt):
                journal.begin_segment(99, machine.snapshot())
        assert turns_of(path) == all_turns, step
    FileJournal(path, 1).begin_segment(99, machine.snapshot())
    assert turns_of(path) == [NodeTurn(99, machine.snapshot(), [])]


def test_full_disk_raises_world_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(tmp_path / "journal", 1 << 20)

    def fail_with_enospc(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail_with_enospc)
    with pytest.raises(WorldError, match="No space left on device; free space"):
        journal.append(1, PeerLost(1), [])
    journal.close()


FILL_FILE = """
import signal, sys
from pathlib import Path
from cotenant.node.model.event import PeerLost
from cotenant.errors import WorldError
from cotenant.runner.journal_file import FileJournal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = FileJournal(Path(sys.argv[1]), 1 << 30)
written = 0
try:
    while True:
        journal.append(written, PeerLost(written), [])
        written += 1
except WorldError as error:
    print(written, error)
"""


def test_partially_written_turn_is_cut_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", FILL_FILE, str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    written, message = done.stdout.split(maxsplit=1)
    assert "cannot write the journal" in message
    recovery = Recovery(path, NodeJournalReader)
    assert len(list(recovery.turns())) == int(written)
    recovery.truncate_torn_tail()
    assert len(turns_of(path)) == int(written)


def test_journal_that_cannot_be_opened_raises_world_error(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(WorldError, match="cannot open the journal"):
        FileJournal(tmp_path / "journal", 1)
    with pytest.raises(WorldError, match="cannot read the journal"):
        list(Recovery(tmp_path / "journal", NodeJournalReader).turns())


@pytest.mark.parametrize("step", ["os.fsync", "os.link", "pathlib.Path.rename", "pathlib.Path.unlink", "os.write"])
def test_failed_rotation_raises_world_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "journal"
    machine = write_journal(path)
    all_turns = turns_of(path)
    journal = FileJournal(path, 1)

    def fail_with_eio(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(step, fail_with_eio)
        with pytest.raises(WorldError, match="Input/output error"):
            journal.begin_segment(99, machine.snapshot())
    assert turns_of(path) == all_turns
    journal.close()


def test_largest_node_state_fits_a_segment_head_and_an_answer(tmp_path: Path) -> None:
    longest = "\N{SNOWMAN WITHOUT SNOW}" * COMMAND_LIMIT
    astral = "\N{GRINNING FACE}" * COMMAND_LIMIT
    spec = TenantSpec(Kind.OFFLINE, 7, "", 0, 0, 0, astral, longest)
    machine = NodeMachine()
    machine.handle(NodeStarted(NodeSettings(SLOTS_LIMIT, 10**10), "test", 0), now=1)
    for peer in range(SLOTS_LIMIT):
        machine.handle(TenantJoined(peer, 1 << 22, 1 << 31, spec), now=2)
    journal = FileJournal(tmp_path / "journal", 1)
    journal.begin_segment(3, machine.snapshot())
    journal.close()
    second = NodeMachine()
    replay(second, turns_of(tmp_path / "journal"))
    assert len(second.tenants()) == SLOTS_LIMIT
    tenant_list = wire.TenantList(
        1, "test", 1, machine.tenants(), [], 1, 1, SLOTS_LIMIT, [], Histogram(), machine.rules, []
    )
    assert len(wire.encode(tenant_list)) < wire.ANSWER_LIMIT_BYTES
