"""Faults under MPS: the affected clients, new clients meanwhile, and recovery."""

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
def harness(tmp_path: Path) -> Iterator[MpsHarness]:
    harness = MpsHarness(tmp_path)
    assert harness.control("-d").returncode == 0
    yield harness
    harness.close()


def is_well(*clients: SteeredMps) -> bool:
    return [client.ask(f"spin {MILLISECOND}", "sync") for client in clients] == [READY] * len(clients)


def test_fatal_fault_affects_all_clients_and_blocks_new_ones_until_they_exit(harness: MpsHarness) -> None:
    culprit, waiting, idle = (harness.client("init", "context") for _ in range(3))
    stranger = harness.stranger("init", "context")
    server = harness.server()
    assert harness.command(f"get_server_status {server}") == "ACTIVE"
    assert waiting.ask(LONG) == READY
    waiting.tell("sync")
    assert culprit.ask("crash") == "ILLEGAL_ADDRESS"
    assert waiting.await_answer() == "ILLEGAL_ADDRESS"
    assert idle.ask("alloc 512") == "ILLEGAL_ADDRESS"
    assert is_well(stranger)
    assert harness.command(f"get_server_status {server}") == "FAULT"
    newcomer = harness.client()
    assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
    harness.gone(culprit, waiting)
    assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
    harness.gone(idle)
    assert newcomer.ask("init", "context") == READY
    assert is_well(newcomer)
    assert harness.command(f"get_server_status {server}") == "ACTIVE"


def test_a_fault_is_contained_in_the_devices_that_its_clients_use(tmp_path: Path) -> None:
    harness = MpsHarness(tmp_path, count=3)
    try:
        assert harness.control("-d").returncode == 0
        culprit, bridge = harness.client("init", "on 0"), harness.client("init", "on 0", "on 1")
        indirect, unaffected = harness.client("init", "on 1"), harness.client("init", "on 2")
        server = harness.server()
        assert culprit.ask("crash") == "ILLEGAL_ADDRESS"
        while (answer := indirect.ask("query")) == READY:
            pass
        assert answer == bridge.ask("query") == "ILLEGAL_ADDRESS"
        assert harness.command(f"get_server_status {server}") == "FAULT"
        newcomer = harness.client()
        assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
        harness.gone(culprit, bridge)
        assert newcomer.ask("init") == "MPS_SERVER_NOT_READY"
        harness.gone(indirect)
        assert newcomer.ask("init", "on 1") == READY
        assert is_well(unaffected, newcomer)
    finally:
        harness.close()


def test_client_killed_with_work_in_flight_ends_its_co_clients(harness: MpsHarness) -> None:
    idle, busy, other = (harness.client("init", "context") for _ in range(3))
    harness.gone(idle, killed=True)
    assert is_well(other)
    assert busy.ask(LONG) == READY
    harness.gone(busy, killed=True)
    assert other.ask("sync") == "LAUNCH_FAILED"


def test_effect_of_a_killed_client_can_be_disabled(harness: MpsHarness) -> None:
    fault.set_mps_deaths(harness.directory, 0, harm=False)
    busy, other = harness.client("init", "context"), harness.client("init", "context")
    assert busy.ask(LONG) == READY
    harness.gone(busy, killed=True)
    assert is_well(other)


def test_a_client_that_exits_normally_harms_no_other_client(harness: MpsHarness) -> None:
    busy, other = harness.client("init", "context"), harness.client("init", "context")
    assert busy.ask(LONG) == READY
    harness.gone(busy)
    assert is_well(other)


def test_terminated_client_does_not_affect_others(harness: MpsHarness) -> None:
    target, other = harness.client("init", "context"), harness.client("init", "context")
    server = harness.server()
    assert target.ask(LONG) == READY
    target.tell("sync")
    assert harness.command(f"terminate_client {server} {target.pid}") == "0"
    assert target.await_answer() == "MPS_CLIENT_TERMINATED"
    assert target.ask("context") == "MPS_CLIENT_TERMINATED"
    assert is_well(other, harness.client("init", "context"))
    harness.gone(target, killed=True)
    assert is_well(other)
    assert "no client of this server" in harness.command(f"terminate_client {server} {target.pid}")


def test_death_of_the_server_ends_its_clients(harness: MpsHarness) -> None:
    waiting, idle = harness.client("init", "context"), harness.client("init", "context")
    server = harness.server()
    assert waiting.ask(LONG) == READY
    waiting.tell("sync")
    os.kill(server, signal.SIGKILL)
    assert waiting.await_answer() == "MPS_RPC_FAILURE"
    assert idle.ask("alloc 512") == "MPS_RPC_FAILURE"
    assert idle.ask("context") == "MPS_RPC_FAILURE"
    assert is_well(harness.client("init", "context"))  # a new server, whatever became of the old one's clients
    assert harness.server() != server
    assert f"Server {server} exited with status -9" in (harness.log / "control.log").read_text()


def test_quit_waits_for_clients_and_admits_no_more(harness: MpsHarness) -> None:
    client = harness.client("init", "context")
    quitting = subprocess.Popen(["nvidia-cuda-mps-control", "quit"], env=harness.environment())
    late = harness.client()
    while late.ask("init") == READY:  # until the daemon has received it
        late.end()
        late = harness.client()
    assert late.ask("init") == "MPS_SERVER_NOT_READY"
    assert is_well(client)
    assert quitting.poll() is None
    client.end()
    assert quitting.wait(60) == 0
    assert harness.control(input_text="get_server_list\n").returncode == 1
    assert late.ask("init", "context") == READY  # without MPS now


def test_quit_with_a_timeout_ends_clients(harness: MpsHarness) -> None:
    client = harness.client("init", "context")
    assert client.ask(LONG) == READY
    assert harness.command("quit -t 0") == ""
    assert client.ask("sync") == "MPS_RPC_FAILURE"


def test_clients_survive_a_dead_daemon_and_a_new_one_can_start(harness: MpsHarness) -> None:
    client = harness.client("init", "context")
    server = harness.server()
    daemon = int((harness.pipe / "nvidia-cuda-mps-control.pid").read_text())
    watch, ending = os.pidfd_open(server), os.pidfd_open(daemon)
    os.kill(daemon, signal.SIGKILL)
    assert select.select([ending], [], [], 60)[0]  # until then its socket accepts connections
    os.close(ending)
    assert is_well(client)
    assert is_well(harness.client("init", "context"))  # no daemon, no MPS: a stale socket is none
    assert len({row["group"] for row in harness.counters()["clients"]}) == 2
    assert harness.control("-d").returncode == 0
    assert is_well(harness.client("init", "context"))
    assert harness.server() != server
    client.end()
    assert select.select([watch], [], [], 60)[0]  # the server without a daemon goes when its last client has left
    os.close(watch)
