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
    """Another process checks the directory just before its owner locks it."""
    abandoned = []
    lock = fcntl.flock

    def check_before_lock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            abandoned.append(is_abandoned(tmp_path))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", check_before_lock)
    assert not is_abandoned(tmp_path)
    lock_descriptor = lock_run_directory(tmp_path)
    assert abandoned == [False]
    assert not is_abandoned(tmp_path)
    os.close(lock_descriptor)
    assert is_abandoned(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
