"""The store keeps every recording under concurrent writers and renames a damaged database."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import ConfigError, WorldError
from cotenant.profile.profile import Profile, merge
from cotenant.profile.store import RECORDINGS_KEPT, ProfileKey, ProfileStore
from tests.profile.test_profile import profiles

pytestmark = pytest.mark.live

KEY = ProfileKey("task", "V100")
PROFILE = Profile("task", "V100", 1, span_ns=7, busy_ns=3)
WRITER = """
import sys
from pathlib import Path
from cotenant.profile.profile import Profile
from cotenant.profile.store import ProfileStore
store = ProfileStore(Path(sys.argv[1]), print)
for number in range(int(sys.argv[3])):
    store.add(Profile(f"{sys.argv[2]}-{number}", "V100", 1), number)
"""


class MessageLog:
    """Collects reported messages."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def __call__(self, text: str) -> None:
        self.received.append(text)


@pytest.fixture
def messages() -> MessageLog:
    return MessageLog()


@pytest.fixture
def store(tmp_path: Path, messages: MessageLog) -> ProfileStore:
    return ProfileStore(tmp_path / "state" / "profiles.sqlite", messages)


@settings(max_examples=20)
@given(recorded=st.lists(profiles, min_size=1, max_size=5))
def test_stored_profile_is_the_merge_of_its_recordings(
    recorded: list[Profile], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = ProfileStore(tmp_path_factory.mktemp("store") / "profiles.sqlite", print)
    for at_ns, profile in enumerate(recorded):
        store.add(profile, at_ns)
    assert [recording.profile for recording in store.recordings(KEY)] == recorded
    stored = store.get(KEY)
    assert stored is not None
    assert (stored.profile, stored.recorded_ns) == (merge(recorded, "task", "V100"), len(recorded) - 1)


def test_reading_creates_no_file(store: ProfileStore) -> None:
    assert store.keys() == []
    assert store.recordings(KEY) == []
    assert store.get(KEY) is None
    assert store.prune([KEY], 0, 0) == 0
    assert not store.path.parent.exists()


def test_only_the_latest_recordings_of_a_key_are_kept(store: ProfileStore) -> None:
    for number in range(RECORDINGS_KEPT + 3):
        store.add(Profile("task", "V100", 1, span_ns=number), number)
        store.add(Profile("task", "A100", 1, span_ns=number), number)
    for device in ("V100", "A100"):
        kept = store.recordings(ProfileKey("task", device))
        assert [recording.profile.span_ns for recording in kept] == list(range(3, RECORDINGS_KEPT + 3))


def test_pruning_by_age_and_by_number(store: ProfileStore) -> None:
    for number in range(6):
        store.add(PROFILE, number)
    assert store.prune([KEY], 2, 1 << 62) == 2
    assert [recording.recorded_ns for recording in store.recordings(KEY)] == [2, 3, 4, 5]
    assert store.prune([KEY], 0, 1) == 3
    assert store.prune([KEY], 0, 0) == 1
    assert store.keys() == []


def test_several_processes_write_at_once(store: ProfileStore) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(store.path), name, "15"], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b", "c")
    ]
    assert [(writer.communicate()[0], writer.returncode) for writer in writers] == [("", 0)] * 3
    assert len(store.keys()) == 45


def test_writer_killed_during_a_write_leaves_whole_recordings(store: ProfileStore) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store.path), "a", "100000"])
    try:
        while len(store.keys()) < 10:
            assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    keys = store.keys()
    assert all(store.get(key) is not None for key in keys)
    store.add(PROFILE, 0)
    assert len(store.keys()) == len(keys) + 1


@pytest.mark.parametrize(
    "damage", [b"this is no database, whatever its name says", b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_file_that_is_no_database_is_renamed_and_reported(
    store: ProfileStore, messages: MessageLog, damage: bytes
) -> None:
    store.path.parent.mkdir()
    store.path.write_bytes(damage)
    store.add(PROFILE, 0)
    assert store.keys() == [KEY]
    (damaged,) = store.path.parent.glob("*.damaged-1")
    assert damaged.read_bytes() == damage
    assert len(messages.received) == 1
    assert "renamed to profiles.sqlite.damaged-1" in messages.received[0]


def test_damaged_page_is_detected_when_it_is_read(store: ProfileStore, messages: MessageLog) -> None:
    for number in range(20):
        store.add(Profile(f"task {number} {'x' * 900}", "V100", 1), number)
    data = bytearray(store.path.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 200] = b"\xff" * 200
    store.path.write_bytes(data)
    store.path.with_name(store.path.name + "-wal").unlink(missing_ok=True)
    assert store.keys() == []
    assert "renamed to" in messages.received[0]
    store.add(PROFILE, 0)
    assert store.keys() == [KEY]


def test_damaged_recording_is_skipped_and_reported(store: ProfileStore, messages: MessageLog) -> None:
    store.add(PROFILE, 1)
    store.add(PROFILE, 2)
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE recording SET body = x'93' WHERE id = 1")
    assert [recording.recorded_ns for recording in store.recordings(KEY)] == [2]
    assert "recording 1 is damaged" in messages.received[0]


def test_newer_schema_is_not_changed(store: ProfileStore) -> None:
    store.add(PROFILE, 0)
    with sqlite3.connect(store.path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer cotenant"):
        store.keys()
    with pytest.raises(ConfigError, match="newer cotenant"):
        store.add(PROFILE, 0)


def test_invalid_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="repair its directory"):
        ProfileStore(tmp_path / "file" / "profiles.sqlite", print).add(PROFILE, 0)
