"""A node on a disk that is full, read-only or gone: running tenants continue, joins are refused, and it recovers."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.errors import CotenantError
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.daemon.node_files import PERIOD_NS, free_space, unwritable
from cotenant.units.instant import SECOND_NS
from tests.support.node_processes import NodeHarness, alive, until

pytestmark = pytest.mark.live


@contextlib.contextmanager
def tiny_disk(path: Path) -> Iterator[None]:
    """Mount a small tmpfs; only root can."""
    path.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def fill(path: Path) -> None:
    with (path / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_full_disk_refuses_joins_and_recovers(node_harness: NodeHarness) -> None:
    with tiny_disk(node_harness.directories.state):
        node = node_harness.node()
        first, second = node_harness.tenant("first"), node_harness.tenant("second")
        fill(node_harness.directories.state)
        refused = node_harness.run("run", "--", "true")
        assert refused.returncode == 75
        [line] = [line for line in refused.stderr.splitlines() if "refused" in line]
        assert "has no space left" in line or "No space left on device" in line
        assert "try again in" in line
        second.terminate()
        second.wait()
        until(lambda: node_harness.names() == ["first"])
        assert first.poll() is None
        status = node_harness.run("node", "status")
        assert status.returncode == 0
        assert "failing: " in status.stdout
        doctor = node_harness.run("doctor")
        assert doctor.returncode == 1
        assert "the node refuses joins" in doctor.stdout
        time.sleep(3 * PERIOD_NS / SECOND_NS)  # until the node has looked at its files: no reader sees events now
        (node_harness.directories.state / "filler").unlink()
        until(lambda: node_harness.json("node", "status")["storage"]["ok"])
        assert node_harness.run("run", "--", "true").returncode == 0
        assert node.poll() is None
        assert node_harness.json("replay", str(node_harness.directories.journal))["reproduced"]
        until(lambda: "files-restored" in kinds_of(node_harness))
        kinds = kinds_of(node_harness)
        assert kinds.count("files-lost") == kinds.count("files-restored") == 1
        assert kinds.count("journal-failed") == kinds.count("journal-restored")
        node.terminate()
        node.communicate()


def kinds_of(node_harness: NodeHarness) -> list[str]:
    """Return the kinds of all events in the journal."""
    done = node_harness.run("events", "--json")
    return [json.loads(line)["event"] for line in done.stdout.splitlines()]


def test_node_on_a_full_disk_is_restarted_without_losing_tenants(node_harness: NodeHarness) -> None:
    with tiny_disk(node_harness.directories.state):
        node_harness.node()
        tenant = node_harness.tenant("a")
        slots = node_harness.slots()
        fill(node_harness.directories.state)
        node_harness.kill_node()
        node_harness.node()
        until(lambda: node_harness.slots() == slots)
        assert tenant.poll() is None
        (node_harness.directories.state / "filler").unlink()
        until(lambda: node_harness.json("node", "status")["storage"]["ok"])
        assert node_harness.run("run", "--", "true").returncode == 0
        node_harness.kill_node()


@pytest.mark.parametrize("label", ["runtime", "state"])
def test_deleted_directory_is_created_again(node_harness: NodeHarness, label: str) -> None:
    node = node_harness.node()
    tenant = node_harness.tenant("a")
    pid = node_harness.node_pid()
    shutil.rmtree(getattr(node_harness.directories, label))
    until(lambda: node_harness.node_pid() == pid)
    until(lambda: node_harness.json("node", "status")["storage"]["ok"])
    assert node_harness.names() == ["a"]
    assert node_harness.run("run", "--", "true").returncode == 0
    second = node_harness.run("node")
    assert second.returncode == 75, "its lock is there again, too"
    assert tenant.poll() is None
    assert node.poll() is None
    assert node_harness.json("replay", str(node_harness.directories.journal))["reproduced"]
    node_harness.kill_node()
    node_harness.node()
    until(lambda: list(node_harness.slots()) == ["a"])


@pytest.mark.parametrize("label", ["tenant_socket", "operator_socket"])
def test_replaced_socket_is_created_again(node_harness: NodeHarness, label: str) -> None:
    node = node_harness.node()
    path: Path = getattr(node_harness.directories, label)
    path.unlink()
    path.write_text("not a socket")
    until(lambda: answering_pid(path) == node.pid)


def answering_pid(path: Path) -> int:
    """Return the node that answers at a socket; 0 if none does."""
    try:
        with Connection(path) as connection:
            answer, _ = connection.ask(wire.ListTenants(wire.VERSION))
    except CotenantError:
        return 0
    assert isinstance(answer, wire.TenantList)
    return answer.pid


def test_directory_that_another_node_took_is_reported_and_left_alone(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    pid = node.pid
    os.kill(pid, signal.SIGSTOP)  # it cannot restore anything before the other node is there
    shutil.rmtree(node_harness.directories.runtime)
    shutil.rmtree(node_harness.directories.state)
    other = node_harness.node()
    os.kill(pid, signal.SIGCONT)
    assert node.stderr is not None
    line = next(line for line in node.stderr if "cannot be restored" in line)
    assert f"pid {other.pid}" in line
    assert alive(pid)
    assert node_harness.node_pid() == other.pid, "the other node's socket is in place"
    node.terminate()
    node.wait()
    assert node_harness.node_pid() == other.pid, "and stays there when the first node ends"


def test_reasons_why_a_directory_cannot_be_written(tmp_path: Path) -> None:
    assert unwritable(tmp_path) == ""
    assert "No such file" in unwritable(tmp_path / "none")
    with tiny_disk(tmp_path / "disk"):
        assert free_space(tmp_path / "disk") > 0
        fill(tmp_path / "disk")
        assert unwritable(tmp_path / "disk") == "has no space left"
        (tmp_path / "disk" / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        assert "read-only" in unwritable(tmp_path / "disk")
