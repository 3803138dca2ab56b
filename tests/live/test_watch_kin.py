"""A process is known by number, namespace and start: never taken for another, found in containers too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant import _native
from cotenant.live.watch.kin import Kin, identity_of, parse_numbers, parse_stat, stat_of, word_of
from tests.live.indoors import descriptors, until

words = st.integers(0, (1 << 64) - 1)


@given(words, words, words)
def test_identities_are_made_as_the_hook_makes_them(pid: int, space: int, start: int) -> None:
    owner = identity_of(pid, space, start)
    assert owner == _native.ledger_identity(pid, space, start)
    assert word_of(owner) == (pid & 0x3FFFFF, space & 0x3FFFFF, start & 0xFFFFF)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_process_or_none(text: bytes) -> None:
    stat = parse_stat(text)
    assert stat is None or stat.start_ticks >= 0
    assert all(number >= 0 for number in parse_numbers(text))


@given(st.binary(max_size=16).filter(lambda name: b"\n" not in name), st.integers(0, 1 << 62))
def test_a_name_cannot_lie_about_the_start(name: bytes, start: int) -> None:
    fields = [b"S", *[b"1"] * 18, str(start).encode(), *[b"0"] * 30]
    stat = parse_stat(b"42 (" + name + b") " + b" ".join(fields) + b"\n")
    assert stat is not None
    assert (stat.state, stat.start_ticks) == ("S", start)


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=5))
def test_numbers_are_read_in_the_order_of_namespaces(numbers: list[int]) -> None:
    line = b"NSpid:\t" + b"\t".join(str(number).encode() for number in numbers)
    assert parse_numbers(b"Name:\tNSpid: 7\nState:\tS\n" + line + b"\nNSpgid:\t9\n") == tuple(numbers)


def space_of(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def owner_of(pid: int) -> int:
    stat = stat_of(pid)
    assert stat is not None
    return identity_of(pid, space_of(pid), stat.start_ticks)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_found_and_its_end_is_noticed_before_anybody_reaps_it(sleeper: subprocess.Popen[bytes]) -> None:
    kin, owner, before = Kin(), owner_of(sleeper.pid), descriptors()
    assert kin.find(owner) == sleeper.pid
    assert kin.is_alive(owner)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: kin.state(owner) == "T")
    kin.kill(owner)
    until(lambda: not kin.is_alive(owner))  # a zombie: we have not waited for it
    assert kin.could_be(owner, sleeper.pid)
    assert not kin.could_be(owner, sleeper.pid + 1)
    sleeper.wait()
    assert not kin.is_alive(owner)
    kin.kill(owner)  # nobody is hit
    kin.keep_only([])
    until(lambda: descriptors() <= before)  # fewer, where an earlier test's are closed only now
    assert kin.find(owner) is None


def test_a_number_that_is_anothers_by_now_is_not_it(sleeper: subprocess.Popen[bytes]) -> None:
    kin = Kin()
    stat = stat_of(sleeper.pid)
    assert stat is not None
    earlier = identity_of(sleeper.pid, space_of(sleeper.pid), stat.start_ticks - 1)
    elsewhere = identity_of(sleeper.pid, space_of(sleeper.pid) + 1, stat.start_ticks)
    for owner in (earlier, elsewhere):
        assert kin.find(owner) is None
        assert not kin.is_alive(owner)
        kin.kill(owner)
    assert sleeper.poll() is None
    assert kin.could_be(earlier, sleeper.pid)  # a device that lists the number may still mean the earlier one
    assert not kin.could_be(elsewhere, sleeper.pid)  # a living process that is not the one


def test_who_lives_in_another_namespace_is_found_by_its_number_there() -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", "sleep", "600"]
    if shutil.which("unshare") is None or subprocess.run([*command[:-2], "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    outside = subprocess.Popen(command)
    try:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
        until(lambda: children.read_text().split())
        inside = int(children.read_text().split()[0])
        until(lambda: Path(f"/proc/{inside}/comm").read_text().strip() == "sleep")
        stat = stat_of(inside)
        assert stat is not None
        owner = identity_of(1, space_of(inside), stat.start_ticks)
        kin = Kin()
        assert kin.find(owner) == inside != 1
        until(lambda: kin.state(owner) == "S")  # it has its name before it sleeps
        os.kill(inside, signal.SIGKILL)
        until(lambda: not kin.is_alive(owner))
        outside.wait()
        assert kin.could_be(owner, inside)
        kin.let_go(owner)
        assert kin.find(owner) is None
        assert not kin.could_be(owner, os.getpid())
        kin.keep_only([])
    finally:
        outside.kill()
        outside.wait()
