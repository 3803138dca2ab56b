"""Does the journal on disk survive what disks and deaths do to files?"""

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cotenant.apps.node import _recover
from cotenant.domain.cluster import Attempt
from cotenant.domain.clusters import AckEnd, NodeGone
from cotenant.domain.event import SLOTS_LIMIT, Event, NodeSettings, NodeStarted, PeerLost, TenantJoined, TenantLeft
from cotenant.domain.histogram import Histogram
from cotenant.domain.tenant import COMMAND_LIMIT, Kind, TenantSpec, Terms
from cotenant.errors import WorldError
from cotenant.format import wire
from cotenant.format.journal import MAGIC, Turn, TurnReader
from cotenant.host import Host, replay
from cotenant.live.clock import LiveClock
from cotenant.live.directory import Places
from cotenant.live.journal import FileJournal, Recovery
from cotenant.live.page import LivePages
from cotenant.machine.node import NodeMachine

STARTED = NodeStarted(NodeSettings(4, 10**10), "test", 0)
SPEC = TenantSpec(Kind.OFFLINE, 7, command="test")


def turns_of(path: Path) -> list[Turn]:
    with path.open("rb") as file:
        return list(TurnReader(file.read))


def lived(path: Path, peers: int = 6, limit_bytes: int = 1 << 30) -> NodeMachine:
    """The journal of a node where peers came, and every other one left; returns its machine."""
    machine = NodeMachine()
    journal = FileJournal(path, limit_bytes)
    host = Host(machine, {}, journal)
    host._deeds.update(dict.fromkeys(_all_actions(), lambda action: None))
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
    from cotenant.domain.action import Crowd, Grant, Refuse, Revoke, Stop

    return [Crowd, Grant, Refuse, Revoke, Stop]


def places_in(home: Path) -> Places:
    (home / "run").mkdir()
    (home / "state").mkdir()
    return Places(home / "run", home / "state")


def test_the_file_is_private_and_begins_with_its_magic_line(tmp_path: Path) -> None:
    FileJournal(tmp_path / "journal", 100).close()
    assert (tmp_path / "journal").read_bytes() == MAGIC
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600


def test_a_journal_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for now in range(3):
        journal = FileJournal(path, 1 << 20)
        journal.append(now, PeerLost(now), [])
        journal.close()
    assert [turn.now for turn in turns_of(path)] == [0, 1, 2]


def test_nothing_to_recover_is_nothing_to_say(tmp_path: Path) -> None:
    recovery = Recovery(tmp_path / "journal", TurnReader)
    assert list(recovery.turns()) == []
    assert recovery.mend() == ""


@pytest.mark.parametrize("cut", [1, 3, 8, 9, 20])
def test_a_torn_tail_is_cut_off_and_said(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    lived(path)
    whole = turns_of(path)
    os.truncate(path, path.stat().st_size - cut)
    recovery = Recovery(path, TurnReader)
    sound = list(recovery.turns())
    assert sound == whole[: len(sound)]
    assert len(sound) < len(whole)
    finding = recovery.mend()
    assert "torn" in finding
    assert str(path) in finding
    assert "\n" not in finding
    assert turns_of(path) == sound
    again = Recovery(path, TurnReader)
    assert list(again.turns()) == sound
    assert again.mend() == "", "a mended journal needs no mending"


def test_every_possible_tear_leaves_a_journal_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lived(path, peers=2)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        recovery = Recovery(path, TurnReader)
        replay(NodeMachine(), recovery.turns())
        recovery.mend()
        journal = FileJournal(path, 1 << 20)
        journal.append(99, PeerLost(99), [])
        journal.close()
        assert turns_of(path)[-1] == Turn(99, PeerLost(99), []), size
        path.unlink()


def recovered(places: Places, said: list[str]) -> tuple[NodeMachine, LiveClock]:
    pages = LivePages(places.pages)
    try:
        return _recover(places, pages, said.append)
    finally:
        pages.close()


def test_a_lost_journal_does_not_forget_generations(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    pages = LivePages(places.pages)
    pages.publish(Terms(0, 7, Kind.OFFLINE, 5, 0, 0, 0, -1), 0)
    pages.revoke(0, 7)
    pages.publish(Terms(2, 3, Kind.OFFLINE, 5, 0, 0, 0, -1), 0)
    pages.close()
    said: list[str] = []
    machine, _ = recovered(places, said)
    assert machine.snapshot().generations == (7, 0, 3)
    assert machine.tenants() == []
    assert "is gone" in said[0]
    [head] = turns_of(places.journal)
    assert head.event == machine.snapshot()


def test_a_tenant_that_a_page_says_was_replaced_is_not_believed(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    machine = lived(places.journal)
    [first, *others] = machine.tenants()
    places.journal.write_bytes(places.journal.read_bytes() + b"not a turn, and more than a torn one\n")
    pages = LivePages(places.pages)
    pages.publish(msgspec.structs.replace(first.tenant.terms, generation=first.tenant.terms.generation + 1), 0)
    pages.close()
    again, _ = recovered(places, [])
    assert [view.tenant for view in again.tenants()] == [view.tenant for view in others]
    again.check()


def test_a_new_head_is_on_the_disk_before_it_takes_the_place_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = places_in(tmp_path)
    lived(places.journal)
    places.journal.write_bytes(places.journal.read_bytes() + b"not a turn, and more than a torn one\n")
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        done.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append("rename " + Path(source).name)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    recovered(places, [])
    assert done[:2] == ["sync journal.new", "rename journal.new"]


def test_a_damaged_journal_is_set_aside_and_the_sound_part_goes_on(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    lived(places.journal)
    whole = turns_of(places.journal)
    content = bytearray(places.journal.read_bytes())
    content[len(content) // 2] ^= 0xFF
    places.journal.write_bytes(content)
    said: list[str] = []
    machine, clock = recovered(places, said)
    assert 0 < machine.turn < len(whole)
    [finding] = said
    assert "damaged" in finding
    assert "journal.damaged-1" in finding
    assert (places.state / "journal.damaged-1").read_bytes() == content
    [head] = turns_of(places.journal)
    assert head.event == machine.snapshot()
    assert clock.now() >= head.now
    machine.check()
    # The new journal stands alone, and a second start finds nothing wrong.
    again, _ = recovered(places, said)
    assert again.snapshot() == machine.snapshot()
    assert len(said) == 1


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    lived(places.journal, peers=3)
    whole = places.journal.read_bytes()
    expected = turns_of(places.journal)
    for position in range(0, len(whole), 3):
        content = bytearray(whole)
        content[position] ^= 0x55
        places.journal.write_bytes(content)
        said: list[str] = []
        machine, _ = recovered(places, said)
        assert said, f"byte {position} was changed and nobody said so"
        assert machine.turn < len(expected)
        for file in places.state.iterdir():
            file.unlink()


def test_damage_upon_damage_keeps_every_file(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    for number in (1, 2, 3):
        places.journal.write_bytes(b"this is a letter\n")
        said: list[str] = []
        machine, _ = recovered(places, said)
        assert machine.turn == 0
        assert f"journal.damaged-{number}" in said[0]


def test_segments_rotate_and_each_replays_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    machine = lived(path, peers=60, limit_bytes=1500)
    previous = path.with_name("journal.1")
    assert previous.exists()
    assert not path.with_name("journal.new").exists()
    alone = NodeMachine()
    assert replay(alone, turns_of(path)) >= 1
    assert alone.snapshot() == machine.snapshot()
    before = NodeMachine()
    replay(before, turns_of(previous))
    assert before.snapshot() == turns_of(path)[0].event, "a segment begins where the one before ended"


def test_a_death_between_the_steps_of_a_rotation_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    machine = lived(path)
    whole = turns_of(path)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for step in ("os.fsync", "os.link", "pathlib.Path.rename"):
        journal = FileJournal(path, 1)
        with monkeypatch.context() as patch:
            patch.setattr(step, die)
            with pytest.raises(KeyboardInterrupt):
                journal.begin_segment(99, machine.snapshot())
        assert turns_of(path) == whole, step
    FileJournal(path, 1).begin_segment(99, machine.snapshot())
    assert turns_of(path) == [Turn(99, machine.snapshot(), [])]


def test_a_full_disk_ends_in_a_world_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(tmp_path / "journal", 1 << 20)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(WorldError, match="No space left on device; free space"):
        journal.append(1, PeerLost(1), [])
    journal.close()


FILLS_UP = """
import signal, sys
from pathlib import Path
from cotenant.domain.event import PeerLost
from cotenant.errors import WorldError
from cotenant.live.journal import FileJournal
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


def test_a_turn_that_did_not_fit_is_torn_off_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    done = subprocess.run(
        [sys.executable, "-c", FILLS_UP, str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    written, message = done.stdout.split(maxsplit=1)
    assert "cannot write the journal" in message
    recovery = Recovery(path, TurnReader)
    assert len(list(recovery.turns())) == int(written)
    recovery.mend()
    assert len(turns_of(path)) == int(written)


def test_a_journal_that_cannot_be_opened_is_a_world_error(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(WorldError, match="cannot open the journal"):
        FileJournal(tmp_path / "journal", 1)
    with pytest.raises(WorldError, match="cannot read the journal"):
        list(Recovery(tmp_path / "journal", TurnReader).turns())


@pytest.mark.parametrize("step", ["os.fsync", "os.link", "pathlib.Path.rename", "pathlib.Path.unlink", "os.write"])
def test_a_rotation_that_the_disk_does_not_allow_is_a_world_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "journal"
    machine = lived(path)
    whole = turns_of(path)
    journal = FileJournal(path, 1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(step, refuse)
        with pytest.raises(WorldError, match="Input/output error"):
            journal.begin_segment(99, machine.snapshot())
    assert turns_of(path) == whole
    journal.close()


def test_the_largest_node_fits_the_head_of_a_segment_and_an_answer(tmp_path: Path) -> None:
    most = "\N{SNOWMAN WITHOUT SNOW}" * COMMAND_LIMIT
    astral = "\N{GRINNING FACE}" * COMMAND_LIMIT
    spec = TenantSpec(Kind.OFFLINE, 7, "", 0, 0, 0, astral, most)
    machine = NodeMachine()
    machine.handle(NodeStarted(NodeSettings(SLOTS_LIMIT, 10**10), "test", 0), now=1)
    for peer in range(SLOTS_LIMIT):
        machine.handle(TenantJoined(peer, 1 << 22, 1 << 31, spec), now=2)
    journal = FileJournal(tmp_path / "journal", 1)
    journal.begin_segment(3, machine.snapshot())
    journal.close()
    again = NodeMachine()
    replay(again, turns_of(tmp_path / "journal"))
    assert len(again.tenants()) == SLOTS_LIMIT
    roll = wire.Tenants(1, "test", 1, machine.tenants(), [], 1, 1, SLOTS_LIMIT, [], Histogram(), machine.rules, [])
    assert len(wire.encode(roll)) < wire.ANSWER_LIMIT_BYTES


def test_a_journal_whose_jobs_outlive_the_machine_is_synced_where_something_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("cotenant.live.journal.os.fdatasync", synced.append)
    for is_synced, expected in ((False, 0), (True, 1)):
        journal = FileJournal(tmp_path / f"journal-{is_synced}", 1 << 20, is_synced=is_synced)
        journal.append(1, NodeGone("a"), [])
        journal.append(2, NodeGone("a"), [AckEnd("a", Attempt("job", 3))])
        journal.close()
        assert len(synced) == expected


def test_a_new_segment_of_a_synced_journal_is_in_its_place_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("cotenant.live.journal.sync_directory", synced.append)
    for is_synced, expected in ((False, []), (True, [tmp_path] * 2)):
        journal = FileJournal(tmp_path / f"journal-{is_synced}", 1 << 20, is_synced=is_synced)
        journal.begin_segment(1, NodeGone("a"))
        journal.close()
        assert synced == expected


def test_a_disk_that_fails_to_sync_ends_in_a_world_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(tmp_path / "journal", 1 << 20, is_synced=True)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(WorldError, match="cannot write the journal"):
        journal.append(1, NodeGone("a"), [AckEnd("a", Attempt("job", 3))])
    journal.close()
