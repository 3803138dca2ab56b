"""The pages of jobs with several ranks: one per job and user, until the last rank has left."""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest

from cotenant import _native
from cotenant.node.daemon.gangs import LiveGangs
from cotenant.node.model.gang import GangKey

ALICE, BOB = (1000, ""), (1001, "")
JOB = GangKey(ALICE, "job", 2)


def test_ranks_of_a_job_share_a_page_that_cannot_be_resized() -> None:
    gangs = LiveGangs()
    first, second = gangs.join(JOB, 7), gangs.join(JOB, 8)
    assert os.fstat(first).st_ino == os.fstat(second).st_ino
    assert os.fstat(first).st_size == _native.GANG_BYTES
    seals = fcntl.fcntl(first, fcntl.F_GET_SEALS)
    assert seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) == seals
    with pytest.raises(PermissionError):
        os.ftruncate(first, 0)
    gangs.close()


@pytest.mark.parametrize("other", [GangKey(BOB, "job", 2), GangKey(ALICE, "other", 2), GangKey(ALICE, "job", 3)])
def test_other_users_and_jobs_have_other_pages(other: GangKey) -> None:
    gangs = LiveGangs()
    first, second = gangs.join(JOB, 7), gangs.join(other, 8)
    assert os.fstat(first).st_ino != os.fstat(second).st_ino
    assert len(gangs) == 2
    gangs.close()


def test_entry_of_a_process_that_left_is_free_and_the_last_one_takes_the_page_along() -> None:
    gangs = LiveGangs()
    page = mmap.mmap(gangs.join(JOB, 7), _native.GANG_BYTES)
    gangs.join(JOB, 8)
    ranks = [_native.Gang(page, 2, generation) for generation in (7, 8)]
    assert all(rank.begin(True, 1) for rank in ranks)
    assert not _native.Gang(page, 2, 9).begin(True, 1)
    gangs.leave(7)
    gangs.leave(7)
    gangs.leave(1234)  # of no gang
    assert [generation for generation, *_ in _native.gang_ranks(page)[:2]] == [0, 8]
    assert _native.Gang(page, 2, 9).begin(True, 1)
    gangs.leave(8)
    assert len(gangs) == 0
