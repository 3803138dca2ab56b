"""A process is identified by number, namespace and start, also inside containers."""

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
from cotenant.node.daemon.monitor.processes import (
    ProcessTable,
    identity_of,
    parse_numbers,
    parse_stat,
    split_identity,
    stat_of,
)
from tests.support.node_in_process import descriptors, until

pytestmark = pytest.mark.live

words = st.integers(0, (1 << 64) - 1)


@given(words, words, words)
def test_identities_equal_those_of_the_hook(pid: int, space: int, start: int) -> None:
    owner = identity_of(pid, space, start)
    assert owner == _native.ledger_identity(pid, space, start)
    assert split_identity(owner) == (pid & 0x3FFFFF, space & 0x3FFFFF, start & 0xFFFFF)


@given(st.binary(max_size=300))
def test_any_bytes_decode_to_a_process_or_none(text: bytes) -> None:
    stat = parse_stat(text)
    assert stat is None or stat.start_ticks >= 0
    assert all(number >= 0 for number in parse_numbers(text))


@given(st.binary(max_size=16).filter(lambda name: b"\n" not in name), st.integers(0, 1 << 62))
def test_process_name_cannot_forge_the_start(name: bytes, start: int) -> None:
    fields = [b"S", *[b"1"] * 18, str(start).encode(), *[b"0"] * 30]
    stat = parse_stat(b"42 (" + name + b") " + b" ".join(fields) + b"\n")
    assert stat is not None
    assert (stat.state, stat.start_ticks) == ("S", start)


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=5))
def test_process_numbers_follow_the_order_of_namespaces(numbers: list[int]) -> None:
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


def test_process_is_found_and_its_end_is_detected_before_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    table, owner, before = ProcessTable(), owner_of(sleeper.pid), descriptors()
    assert table.find(owner) == sleeper.pid
    assert table.is_alive(owner)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: table.state(owner) == "T")
    table.kill(owner)
    until(lambda: not table.is_alive(owner))  # a zombie: we have not waited for it
    assert table.could_be(owner, sleeper.pid)
    assert not table.could_be(owner, sleeper.pid + 1)
    sleeper.wait()
    assert not table.is_alive(owner)
    table.kill(owner)  # no process is killed
    table.keep_only([])
    until(lambda: descriptors() <= before)  # fewer, where an earlier test's are closed only now
    assert table.find(owner) is None


def test_reused_process_number_is_not_matched(sleeper: subprocess.Popen[bytes]) -> None:
    table = ProcessTable()
    stat = stat_of(sleeper.pid)
    assert stat is not None
    earlier = identity_of(sleeper.pid, space_of(sleeper.pid), stat.start_ticks - 1)
    elsewhere = identity_of(sleeper.pid, space_of(sleeper.pid) + 1, stat.start_ticks)
    for owner in (earlier, elsewhere):
        assert table.find(owner) is None
        assert not table.is_alive(owner)
        table.kill(owner)
    assert sleeper.poll() is None
    assert table.could_be(earlier, sleeper.pid)  # a device that lists the number may still mean the earlier one
    assert not table.could_be(elsewhere, sleeper.pid)  # a living process that is not the one


def test_process_in_another_namespace_is_found() -> None:
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
        table = ProcessTable()
        assert table.find(owner) == inside != 1
        until(lambda: table.state(owner) == "S")  # it has its name before it sleeps
        os.kill(inside, signal.SIGKILL)
        until(lambda: not table.is_alive(owner))
        outside.wait()
        assert table.could_be(owner, inside)
        table.release(owner)
        assert table.find(owner) is None
        assert not table.could_be(owner, os.getpid())
        table.keep_only([])
    finally:
        outside.kill()
        outside.wait()
