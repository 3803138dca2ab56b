"""Under MPS one fault is everybody's: what reaches whom, who is kept out meanwhile, and how it becomes well again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.softgpu import fault
from tests.softgpu.test_mps import LONG, MILLISECOND
from tests.support.mps_daemons import READY, MpsHarness, SteeredMps

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[MpsHarness]:
    stage = MpsHarness(tmp_path)
    assert stage.control("-d").returncode == 0
    yield stage
    stage.close()


def is_well(*clients: SteeredMps) -> bool:
    return [client.ask(f"spin {MILLISECOND}", "sync") for client in clients] == [READY] * len(clients)


def test_a_fatal_fault_reaches_all_and_newcomers_wait_until_they_left(stage: MpsHarness) -> None:
    culprit, waiting, idle = (stage.client("init", "context") for _ in range(3))
    stranger = stage.stranger("init", "context")
    server = stage.server()
    assert stage.command(f"get_server_status {server}") == "ACTIVE"
    assert waiting.ask(LONG) == READY
    waiting.tell("sync")
    assert culprit.ask("crash") == "ILLEGAL_ADDRESS"
    assert waiting.await_answer() == "ILLEGAL_ADDRESS"
    assert idle.ask("alloc 512") == "ILLEGAL_ADDRESS"
    assert is_well(stranger)
    assert stage.command(f"get_server_status {server}") == "FAULT"
    newcomer = stage.client()
    assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
    stage.gone(culprit, waiting)
    assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
    stage.gone(idle)
    assert newcomer.ask("init", "context") == READY
    assert is_well(newcomer)
    assert stage.command(f"get_server_status {server}") == "ACTIVE"


def test_a_fault_is_contained_in_the_devices_that_its_clients_use(tmp_path: Path) -> None:
    stage = MpsHarness(tmp_path, count=3)
    try:
        assert stage.control("-d").returncode == 0
        culprit, bridge = stage.client("init", "on 0"), stage.client("init", "on 0", "on 1")
        beyond, away = stage.client("init", "on 1"), stage.client("init", "on 2")
        server = stage.server()
        assert culprit.ask("crash") == "ILLEGAL_ADDRESS"
        while (answer := beyond.ask("query")) == READY:
            pass
        assert answer == bridge.ask("query") == "ILLEGAL_ADDRESS"
        assert stage.command(f"get_server_status {server}") == "FAULT"
        newcomer = stage.client()
        assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
        stage.gone(culprit, bridge)
        assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
        stage.gone(beyond)
        assert newcomer.ask("init", "on 1") == READY
        assert is_well(away, newcomer)
    finally:
        stage.close()


def test_a_client_killed_with_work_in_flight_harms_the_others(stage: MpsHarness) -> None:
    idle, busy, other = (stage.client("init", "context") for _ in range(3))
    stage.gone(idle, killed=True)
    assert is_well(other)
    assert busy.ask(LONG) == READY
    stage.gone(busy, killed=True)
    assert other.ask("sync") == "LAUNCH_FAILED"


def test_that_can_be_switched_off(stage: MpsHarness) -> None:
    fault.set_mps_deaths(stage.directory, 0, harm=False)
    busy, other = stage.client("init", "context"), stage.client("init", "context")
    assert busy.ask(LONG) == READY
    stage.gone(busy, killed=True)
    assert is_well(other)


def test_a_client_that_exits_normally_harms_no_other_client(stage: MpsHarness) -> None:
    busy, other = stage.client("init", "context"), stage.client("init", "context")
    assert busy.ask(LONG) == READY
    stage.gone(busy)
    assert is_well(other)


def test_a_terminated_client_is_alone_with_it(stage: MpsHarness) -> None:
    target, other = stage.client("init", "context"), stage.client("init", "context")
    server = stage.server()
    assert target.ask(LONG) == READY
    target.tell("sync")
    assert stage.command(f"terminate_client {server} {target.pid}") == "0"
    assert target.await_answer() == "MPS_CLIENT_TERMINATED"
    assert target.ask("context") == "MPS_CLIENT_TERMINATED"
    assert is_well(other, stage.client("init", "context"))
    stage.gone(target, killed=True)
    assert is_well(other)
    assert "no client of this server" in stage.command(f"terminate_client {server} {target.pid}")


def test_the_servers_death_is_the_end_of_its_clients(stage: MpsHarness) -> None:
    waiting, idle = stage.client("init", "context"), stage.client("init", "context")
    server = stage.server()
    assert waiting.ask(LONG) == READY
    waiting.tell("sync")
    os.kill(server, signal.SIGKILL)
    assert waiting.await_answer() == "MPS_RPC_FAILURE"
    assert idle.ask("alloc 512") == "MPS_RPC_FAILURE"
    assert idle.ask("context") == "MPS_RPC_FAILURE"
    assert is_well(stage.client("init", "context"))  # a new server, whatever became of the old one's clients
    assert stage.server() != server
    assert f"Server {server} exited with status -9" in (stage.log / "control.log").read_text()


def test_quit_waits_for_clients_and_lets_no_more_in(stage: MpsHarness) -> None:
    client = stage.client("init", "context")
    quitting = subprocess.Popen(["nvidia-cuda-mps-control", "quit"], env=stage.environment())
    late = stage.client()
    while late.ask("init") == READY:  # until the daemon has heard it
        late.end()
        late = stage.client()
    assert late.ask("init") == "MPS_SERVER_NOT_READY"
    assert is_well(client)
    assert quitting.poll() is None
    client.end()
    assert quitting.wait(60) == 0
    assert stage.control(input_text="get_server_list\n").returncode == 1
    assert late.ask("init", "context") == READY  # without MPS now


def test_quit_with_a_timeout_ends_them(stage: MpsHarness) -> None:
    client = stage.client("init", "context")
    assert client.ask(LONG) == READY
    assert stage.command("quit -t 0") == ""
    assert client.ask("sync") == "MPS_RPC_FAILURE"


def test_a_dead_daemon_leaves_its_clients_alone_and_its_place_to_the_next(stage: MpsHarness) -> None:
    client = stage.client("init", "context")
    server = stage.server()
    daemon = int((stage.pipe / "nvidia-cuda-mps-control.pid").read_text())
    watch, ending = os.pidfd_open(server), os.pidfd_open(daemon)
    os.kill(daemon, signal.SIGKILL)
    assert select.select([ending], [], [], 60)[0]  # until then its socket takes the process that comes
    os.close(ending)
    assert is_well(client)
    assert is_well(stage.client("init", "context"))  # no daemon, no MPS: a stale socket is none
    assert len({row["group"] for row in stage.counters()["clients"]}) == 2
    assert stage.control("-d").returncode == 0
    assert is_well(stage.client("init", "context"))
    assert stage.server() != server
    client.end()
    assert select.select([watch], [], [], 60)[0]  # the server without a daemon goes when its last client has left
    os.close(watch)
