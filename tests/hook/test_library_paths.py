"""The directory of a run belongs to its owner from creation, and is removable after the owner's death."""

import fcntl
import os
from pathlib import Path

import pytest

from cotenant.hook.records import is_abandoned, lock_run_directory

pytestmark = pytest.mark.live


def test_directory_in_creation_is_not_taken_for_an_abandoned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else looks when its owner is about to lock it, and could get no processor for long."""
    seen = []
    lock = fcntl.flock

    def looked_at(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_SH:
            seen.append(is_abandoned(tmp_path))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    assert not is_abandoned(tmp_path)
    held = lock_run_directory(tmp_path)
    assert seen == [False]
    assert not is_abandoned(tmp_path)
    os.close(held)
    assert is_abandoned(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
