"""Is the directory of a run its own from the first instant, and nobody's once its owner is gone?"""

import fcntl
import os
from pathlib import Path

import pytest

from cotenant.live.hook.trace import hold, is_abandoned


def test_a_directory_that_is_just_being_made_is_not_taken_for_one_left_behind(
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
    held = hold(tmp_path)
    assert seen == [False]
    assert not is_abandoned(tmp_path)
    os.close(held)
    assert is_abandoned(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
