"""Is there one node to a directory, whoever else tries?"""

import contextlib
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
from cotenant.format import wire
from cotenant.live.client import Connection, NodeAwayError
from cotenant.live.directory import take_lock
from tests.e2e.stage import Stage, alive, until
from tests.live.indoors import join


def test_a_second_node_is_refused_in_one_sentence(stage: Stage) -> None:
    first = stage.node()
    second = stage.run("node")
    assert second.returncode == 75
    [line] = second.stderr.splitlines()
    assert line.startswith(f"cotenant: a node already runs on {stage.places.runtime} (pid {first.pid}); stop it, or")
    assert stage.node_pid() == first.pid


def test_two_nodes_never_write_one_journal(stage: Stage) -> None:
    """Another runtime directory alone is not enough: the journal is in the state directory."""
    first = stage.node()
    second = stage.run("node", "--runtime", str(stage.home / "other"))
    assert second.returncode == 75
    [line] = second.stderr.splitlines()
    assert line.startswith(f"cotenant: a node already runs on {stage.places.state} (pid {first.pid})")
    third = stage.start("node", "--runtime", str(stage.home / "r"), "--state", str(stage.home / "s"))
    until(lambda: (stage.home / "r" / "node.sock").exists() or third.poll() is not None)
    assert third.poll() is None


def test_one_directory_may_serve_as_both(stage: Stage) -> None:
    both = str(stage.home / "both")
    node = stage.start("node", "--runtime", both, "--state", both)
    until(lambda: (stage.home / "both" / "node.sock").exists() or node.poll() is not None)
    assert node.poll() is None


def test_a_node_that_was_killed_leaves_no_lock(stage: Stage) -> None:
    stage.node()
    stage.kill_node()
    assert stage.places.socket.exists()
    stage.node()


def test_a_node_that_is_told_to_stop_says_so_and_leaves_no_socket(stage: Stage) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        node = stage.node()
        node.send_signal(number)
        _, told = node.communicate(timeout=60)
        assert node.returncode == 0
        *_, why, last = told.splitlines()
        assert f"node stops: told to by {number.name} [turn" in why
        assert last == "cotenant: node stopped"
        assert not stage.places.socket.exists()


def test_an_idle_node_ends_itself(stage: Stage) -> None:
    node = stage.start("node", "--idle-exit", "200ms")
    _, told = node.communicate(timeout=60)
    assert node.returncode == 0
    assert "idle: no tenant" in told


def test_a_full_disk_ends_the_node_with_a_sentence(stage: Stage) -> None:
    node = stage.node(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    connection = Connection(stage.places.socket)
    with contextlib.suppress(NodeAwayError):
        while True:
            join(connection)
            connection.ask(wire.Leave("exit 0"))
    connection.close()
    _, told = node.communicate(timeout=60)
    assert node.returncode == 75
    assert told.splitlines()[-1].startswith("cotenant: cannot write the journal")
    assert "Traceback" not in told
    stage.node()
    replayed = stage.json("replay", str(stage.places.journal))
    assert replayed["reproduced"]


def test_a_refused_node_does_not_close_the_door_of_the_one_that_runs(stage: Stage) -> None:
    stage.node("--group", grp.getgrgid(os.getegid()).gr_name)
    assert stage.run("node").returncode == 75
    assert stat.S_IMODE(stage.places.runtime.stat().st_mode) == 0o710


def test_a_tenant_waits_for_a_node_that_somebody_else_is_starting(stage: Stage) -> None:
    """The winner of a race holds the lock for a while before it answers: reading a long journal takes time."""
    stage.places.runtime.mkdir(mode=0o700)
    with stage.places.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getpid(), file=lock, flush=True)
        tenant = stage.start("run", "--", "sh", "-c", "exit 7")
        until(lambda: stage.places.log.exists() and "already runs" in stage.places.log.read_text())
    stage.node()
    _, told = tenant.communicate(timeout=60)
    assert tenant.returncode == 7, told


def test_whoever_loses_the_lock_waits_until_its_holder_is_named(tmp_path: Path) -> None:
    """Else those who started the loser would see a lock of nobody, and take the winner for one that failed."""
    path = tmp_path / "node.lock"
    refusals: queue.Queue[str] = queue.Queue()

    def lose() -> None:
        try:
            take_lock(path)
        except WorldError as error:
            refusals.put(str(error))

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("4194999", file=lock, flush=True)  # of one that died before: no process has that number
        loser = threading.Thread(target=lose)
        loser.start()
        with pytest.raises(queue.Empty):
            refusals.get(timeout=0.05)
        os.pwrite(lock.fileno(), f"{os.getpid()}\n       ".encode(), 0)
        loser.join()
    assert f"(pid {os.getpid()})" in refusals.get_nowait()


def test_tenants_that_all_find_no_node_share_one(stage: Stage) -> None:
    tenants = [stage.start("run", "--name", f"t{number}", "--", "sleep", "600") for number in range(6)]
    until(lambda: len(stage.slots()) == 6 or any(tenant.poll() is not None for tenant in tenants))
    assert len(stage.slots()) == 6
    pid = stage.node_pid()
    for tenant in tenants:
        tenant.terminate()
    told = [tenant.communicate(timeout=60)[1] for tenant in tenants]
    assert sum("no node was running: started one" in text for text in told) == 1
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
