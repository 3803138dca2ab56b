"""The daemon survives hostile peers and a low limit of descriptors."""

import random
import resource
import socket
import stat

import pytest

from cotenant.node import wire
from tests.support.node_in_process import received
from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live


def connect(node_harness: NodeHarness, data: bytes = b"") -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(node_harness.directories.socket))
    connection.settimeout(60)
    connection.sendall(data)
    return connection


def test_unknown_peers_cannot_exhaust_the_descriptors_of_tenants(node_harness: NodeHarness) -> None:
    few = 72
    node = node_harness.node(
        "--slots", "2", "--gpu", "none", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    )
    strangers = [connect(node_harness) for _ in range(100)]
    node_harness.tenant("a")
    node_harness.tenant("b")
    strangers += [connect(node_harness) for _ in range(100)]
    assert sorted(node_harness.slots()) == ["a", "b"]
    assert node_harness.run("run", "--name", "c", "--", "true").returncode == 75
    assert node.poll() is None
    for one in strangers:
        one.close()
    assert node_harness.endings() == {}


def test_more_slots_than_open_files_are_refused(node_harness: NodeHarness) -> None:
    few = 48
    done = node_harness.run(
        "node", "--slots", "64", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "node.slots = 64" in line
    assert "ulimit -Hn" in line


def test_thousands_of_random_messages_do_not_change_the_daemon(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    rng = random.Random(5)
    opened = _descriptors(node.pid)
    for number in range(1000):
        noise = rng.randbytes(rng.randrange(1, 200))
        if number % 3 == 0:
            noise = len(noise).to_bytes(4, "little") + noise
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(node_harness.directories.socket))
        connection.send(noise)
        if number % 100 == 0:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            received(connection)
        connection.close()
    until(lambda: _descriptors(node.pid) <= opened)
    node_harness.tenant("a")
    assert node_harness.slots() == {"a": (0, 1)}
    assert node.poll() is None


def _descriptors(pid: int) -> int:
    from pathlib import Path

    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_idle_timeout_applies_to_real_connections(node_harness: NodeHarness) -> None:
    node_harness.node()
    half = connect(node_harness, wire.encode(wire.ListTenants(wire.VERSION))[:-1])
    assert node_harness.tenant_list() is not None, "an unfinished frame does not block other peers"
    assert received(half) == [wire.ProtocolViolation("no complete request arrived in time")]


@pytest.mark.parametrize("options, mode, directory", [([], 0o600, 0o700), (["--group", "root"], 0o660, 0o710)])
def test_socket_accepts_the_owner_or_the_group(
    node_harness: NodeHarness, options: list[str], mode: int, directory: int
) -> None:
    import grp
    import os

    if options:
        options = ["--group", grp.getgrgid(os.getegid()).gr_name]
    node_harness.node(*options)
    assert stat.S_IMODE(node_harness.directories.socket.stat().st_mode) == mode
    assert stat.S_IMODE(node_harness.directories.runtime.stat().st_mode) == directory
    assert stat.S_IMODE(node_harness.directories.state.stat().st_mode) == 0o700
    assert stat.S_IMODE(node_harness.directories.journal.stat().st_mode) == 0o600
