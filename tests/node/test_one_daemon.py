"""A directory has one node, under any concurrent starts."""

import fcntl
import grp
import os
import queue
import resource
import signal
import stat
import threading
from pathlib import Path

import pytest

from cotenant.errors import WorldError
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.directories import take_lock
from cotenant.node.model.admission import Reason
from tests.support.node_in_process import SPEC
from tests.support.node_processes import NodeHarness, alive, until

pytestmark = pytest.mark.live


def test_second_node_is_refused_in_one_sentence(node_harness: NodeHarness) -> None:
    first = node_harness.node()
    second = node_harness.run("node")
    assert second.returncode == 75
    [line] = second.stderr.splitlines()
    assert line.startswith(
        f"cotenant: a node already runs on {node_harness.directories.runtime} (pid {first.pid}); stop it, or"
    )
    assert node_harness.node_pid() == first.pid


def test_two_nodes_never_write_one_journal(node_harness: NodeHarness) -> None:
    """Another runtime directory alone is not enough: the journal is in the state directory."""
    first = node_harness.node()
    second = node_harness.run("node", "--runtime-dir", str(node_harness.home / "other"))
    assert second.returncode == 75
    [line] = second.stderr.splitlines()
    assert line.startswith(f"cotenant: a node already runs on {node_harness.directories.state} (pid {first.pid})")
    third = node_harness.start(
        "node", "--runtime-dir", str(node_harness.home / "r"), "--state-dir", str(node_harness.home / "s")
    )
    until(lambda: (node_harness.home / "r" / "tenant.sock").exists() or third.poll() is not None)
    assert third.poll() is None


def test_one_directory_may_be_runtime_and_state(node_harness: NodeHarness) -> None:
    both = str(node_harness.home / "both")
    node = node_harness.start("node", "--runtime-dir", both, "--state-dir", both)
    until(lambda: (node_harness.home / "both" / "tenant.sock").exists() or node.poll() is not None)
    assert node.poll() is None


def test_killed_node_leaves_no_lock(node_harness: NodeHarness) -> None:
    node_harness.node()
    node_harness.kill_node()
    assert node_harness.directories.tenant_socket.exists()
    node_harness.node()


def test_stopped_node_logs_it_and_removes_its_socket(node_harness: NodeHarness) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        node = node_harness.node()
        node.send_signal(number)
        _, stderr = node.communicate(timeout=60)
        assert node.returncode == 0
        *_, why, last = stderr.splitlines()
        assert f"node stops: received {number.name} [turn" in why
        assert last == "cotenant: node stopped"
        assert not node_harness.directories.tenant_socket.exists()


def test_idle_node_exits(node_harness: NodeHarness) -> None:
    node = node_harness.start("node", "--idle-exit", "200ms")
    _, stderr = node.communicate(timeout=60)
    assert node.returncode == 0
    assert "idle: no tenant" in stderr


def join_once(connection: Connection) -> wire.Answer:
    answer, descriptors = connection.ask(wire.Join(wire.VERSION, SPEC))
    for descriptor in descriptors:
        os.close(descriptor)
    return answer


def test_node_that_may_not_write_more_refuses_joins_and_stops_in_order(node_harness: NodeHarness) -> None:
    node = node_harness.node(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    with Connection(node_harness.directories.tenant_socket) as connection:
        while not isinstance(answer := join_once(connection), wire.Refusal):
            connection.ask(wire.Leave("exit 0"))
    assert answer.reject.reason is Reason.NOT_WRITABLE
    assert "File too large" in answer.reject.detail
    assert answer.reject.retry_after_ns > 0
    node.send_signal(signal.SIGTERM)
    _, stderr = node.communicate(timeout=60)
    assert node.returncode == 0
    assert "that only this process knew are lost" in stderr
    assert "Traceback" not in stderr
    node_harness.node()
    replayed = node_harness.json("replay", str(node_harness.directories.journal))
    assert replayed["reproduced"]


def test_refused_node_keeps_the_socket_of_the_running_node(node_harness: NodeHarness) -> None:
    node_harness.node("--operator-groups", grp.getgrgid(os.getegid()).gr_name)
    assert node_harness.run("node").returncode == 75
    assert stat.S_IMODE(node_harness.directories.operator_socket.stat().st_mode) == 0o660


def test_tenant_waits_for_a_node_that_is_starting(node_harness: NodeHarness) -> None:
    """The winner of a race holds the lock for a while before it answers: reading a long journal takes time."""
    node_harness.directories.runtime.mkdir(mode=0o700)
    with node_harness.directories.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getpid(), file=lock, flush=True)
        tenant = node_harness.start("run", "--", "sh", "-c", "exit 7")
        until(
            lambda: node_harness.directories.log.exists() and "already runs" in node_harness.directories.log.read_text()
        )
    node_harness.node()
    _, stderr = tenant.communicate(timeout=60)
    assert tenant.returncode == 7, stderr


def test_loser_of_the_lock_waits_until_its_holder_is_known(tmp_path: Path) -> None:
    """Otherwise the processes that started the loser would find a lock without a holder and assume a failed start."""
    path = tmp_path / "node.lock"
    refusals: queue.Queue[str] = queue.Queue()

    def lose() -> None:
        try:
            take_lock(path)
        except WorldError as error:
            refusals.put(str(error))

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("4194999", file=lock, flush=True)  # the pid of a node that died: no process has this number
        loser = threading.Thread(target=lose)
        loser.start()
        with pytest.raises(queue.Empty):
            refusals.get(timeout=0.05)
        os.pwrite(lock.fileno(), f"{os.getpid()}\n       ".encode(), 0)
        loser.join()
    assert f"(pid {os.getpid()})" in refusals.get_nowait()


def test_concurrent_tenants_start_one_node(node_harness: NodeHarness) -> None:
    tenants = [node_harness.start("run", "--name", f"t{number}", "--", "sleep", "600") for number in range(6)]
    until(lambda: len(node_harness.slots()) == 6 or any(tenant.poll() is not None for tenant in tenants))
    assert len(node_harness.slots()) == 6
    pid = node_harness.node_pid()
    for tenant in tenants:
        tenant.terminate()
    stderr = [tenant.communicate(timeout=60)[1] for tenant in tenants]
    assert sum("no node was running: started one" in text for text in stderr) == 1
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
