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
    connection.connect(str(node_harness.directories.tenant_socket))
    connection.settimeout(60)
    connection.sendall(data)
    return connection


def test_unknown_peers_cannot_exhaust_the_descriptors_of_tenants(node_harness: NodeHarness) -> None:
    few = 200
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
        connection.connect(str(node_harness.directories.tenant_socket))
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


@pytest.mark.parametrize(
    "flag, names, mode",
    [
        ("--operator-users", [], 0o600),
        ("--operator-groups", ["4242"], 0o660),
        ("--operator-groups", ["4242", "4243"], 0o666),
        ("--operator-users", ["4242"], 0o666),
    ],
)
def test_permissions_of_sockets_and_directories(
    node_harness: NodeHarness, flag: str, names: list[str], mode: int
) -> None:
    node_harness.node(flag, ",".join(names))
    directories = node_harness.directories
    if mode == 0o660 and directories.operator_socket.stat().st_gid != int(names[0]):
        mode = 0o666  # the node's user may not give the socket to a group that is not its own
    assert stat.S_IMODE(directories.tenant_socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(directories.operator_socket.stat().st_mode) == mode
    assert stat.S_IMODE(directories.runtime.stat().st_mode) == 0o755
    assert [path.name for path in directories.tenant_directory.iterdir()] == ["tenant.sock"]
    assert stat.S_IMODE(directories.tenant_directory.stat().st_mode) == 0o755, "containers of all users mount it"
    for path in directories.runtime.iterdir():
        if not path.is_dir() or path == directories.tenant_directory:
            continue
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert stat.S_IMODE(directories.token_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(directories.state.stat().st_mode) == 0o700
    assert stat.S_IMODE(directories.journal.stat().st_mode) == 0o600
