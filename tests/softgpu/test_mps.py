"""Processes under MPS: which are clients, their limits, and how they share the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.softgpu import wire
from tests.support.mps_daemons import READY, MpsHarness

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

SMS = 16
COMPUTE_MODE = 20
MPS_ENABLED = 133
MILLISECOND = 1_000_000
LONG = f"spin {3_600_000_000_000}"
EXCLUSIVE = 3
PROHIBITED = 2


@pytest.fixture
def harness_without_daemon(tmp_path: Path) -> Iterator[MpsHarness]:
    harness = MpsHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def harness(harness_without_daemon: MpsHarness) -> MpsHarness:
    assert harness_without_daemon.control("-d").returncode == 0
    return harness_without_daemon


def test_process_is_an_mps_client_only_if_a_daemon_runs(harness: MpsHarness) -> None:
    client, stranger = harness.client("init", "context"), harness.stranger("init", "context")
    server = harness.server()
    assert harness.members(server) == [str(client.pid)]
    assert {row["pid"]: bool(row["group"]) for row in harness.counters()["clients"]} == {
        client.pid: True,
        stranger.pid: False,
    }
    assert client.ask(f"attribute {MPS_ENABLED}") == f"{READY} 1"
    assert stranger.ask(f"attribute {MPS_ENABLED}") == f"{READY} 0"
    harness.gone(client)
    assert harness.members(server) == []
    assert harness.command("quit") == ""
    (harness.pipe / "control").touch()  # a file that is left over is no daemon
    assert harness.client("init", "context").ask(f"attribute {MPS_ENABLED}") == f"{READY} 0"


def test_mps_clients_run_concurrently_and_other_processes_take_turns(harness: MpsHarness) -> None:
    narrow, wide = harness.client("init", "context"), harness.client("init", "context")
    for client in (narrow, wide):
        assert client.ask(f"spin {20 * MILLISECOND} 160") == READY
    assert [client.ask("sync") for client in (narrow, wide)] == [READY, READY]
    assert harness.counters()["counters"]["switches"] == 0
    assert all(not row["delayed_by"] for row in harness.counters()["clients"])
    stranger = harness.stranger("init", "context")
    culprits: dict[int, set[int]] = {}
    while stranger.pid not in culprits.get(narrow.pid, set()) | culprits.get(
        wide.pid, set()
    ):  # until they have run at the same time
        for client in (narrow, wide, stranger):
            assert client.ask(f"spin {100 * MILLISECOND} 160") == READY
        assert [client.ask("sync") for client in (narrow, wide, stranger)] == [READY] * 3
        counters = harness.counters()
        culprits = {row["pid"]: {other["pid"] for other in row["delayed_by"]} for row in counters["clients"]}
    assert harness.counters()["counters"]["switches"] > 0
    assert wide.pid not in culprits[narrow.pid]
    assert narrow.pid not in culprits[wide.pid]


def test_percentage_applies_from_context_creation_and_cannot_be_raised(harness: MpsHarness) -> None:
    whole = harness.client("init", "context")
    server = harness.server()
    assert harness.command(f"set_active_thread_percentage {server} 50") == "50.0"
    half = harness.client("init", "context")
    third = harness.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")
    greedy = harness.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90")
    invalid = harness.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="lots")
    clients = [whole, half, third, greedy, invalid]
    assert [client.ask(f"attribute {SMS}") for client in clients] == [f"{READY} {n}" for n in (80, 40, 24, 40, 40)]
    assert third.ask("affinity") == f"{READY} 24"
    assert third.ask("setenv CUDA_MPS_ACTIVE_THREAD_PERCENTAGE 100", "destroy", "context", "affinity") == f"{READY} 24"
    assert whole.ask("destroy", "context", "affinity") == f"{READY} 80"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE = 'lots'" in (harness.log / "control.log").read_text()


def test_a_client_at_30_percent_uses_at_most_30_percent_of_the_sms(harness: MpsHarness) -> None:
    client = harness.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")
    for blocks in (1, 24, 80, 640, 2000):
        assert client.ask(f"spin {MILLISECOND} {blocks}") == READY
    assert client.ask("context", f"spin {5 * MILLISECOND} 2000", "destroy", "sync") == READY  # in another one
    [row] = harness.counters()["clients"]
    counters = row["counters"]
    assert counters["kernels"] == 6
    assert counters["sm_ns"] <= 24 * counters["busy_ns"]
    assert counters["sm_ns"] > 20 * counters["busy_ns"]
    assert harness.counters()["counters"]["sm_ns"] == counters["sm_ns"]


def test_contexts_can_have_their_own_shares(harness: MpsHarness) -> None:
    client = harness.client(
        "init",
        CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING="1",
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50",
    )
    for percentage, sms in ((10, 8), (25, 20), (80, 40)):
        assert client.ask(f"setenv CUDA_MPS_ACTIVE_THREAD_PERCENTAGE {percentage}", "context") == READY
        assert client.ask(f"attribute {SMS}") == f"{READY} {sms}"
    assert client.ask("setenv CUDA_MPS_ACTIVE_THREAD_PERCENTAGE 100", "context 7", "affinity") == f"{READY} 7"
    assert client.ask("context 60", "affinity") == f"{READY} 40"
    assert client.ask("context 81") == "INVALID_VALUE"
    assert harness.stranger("init").ask("context 7") == "UNSUPPORTED_EXEC_AFFINITY"


def test_pinned_memory_limit_applies_to_its_client_only(harness_without_daemon: MpsHarness) -> None:
    harness = harness_without_daemon
    assert harness.control("-d", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=3G").returncode == 0
    tight = harness.client("init", "context", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G,1=512MB")
    free = harness.client("init", "context", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=9G")
    gigabyte = 1 << 30
    assert tight.ask(f"alloc {gigabyte}") == READY
    assert tight.ask("alloc 512") == "OUT_OF_MEMORY"
    assert free.ask(f"alloc {3 * gigabyte}") == READY
    assert free.ask("alloc 512") == "OUT_OF_MEMORY"
    assert tight.ask("free", "alloc 512") == READY
    assert tight.ask("memory").split()[2] == str(16 * gigabyte)  # the device's, as NVIDIA's driver shows it
    server = harness.server()
    assert harness.command(f"set_device_pinned_mem_limit {server} 0 5G") == ""
    later = harness.client("init", "context")
    assert later.ask(f"alloc {5 * gigabyte}") == READY
    assert later.ask("alloc 512") == "OUT_OF_MEMORY"
    assert free.ask("alloc 512") == "OUT_OF_MEMORY"


def test_client_below_normal_priority_runs_after_others(harness: MpsHarness) -> None:
    low = harness.client("init", "context", CUDA_MPS_CLIENT_PRIORITY="1")
    normal = harness.client("init", "context")
    # 10,000 waves of 10 ms each: the process that has the same priority waits for all of them.
    assert low.ask(f"spin {100_000 * MILLISECOND} {640 * 10_000}") == READY
    assert normal.ask(f"spin {20 * MILLISECOND} 640", "sync") == READY
    assert low.ask("query") == "NOT_READY"


@pytest.mark.parametrize("holder", ["process", "mps"])
def test_exclusive_process_mode_admits_one_process_and_mps_counts_as_one(harness: MpsHarness, holder: str) -> None:
    path = harness.directory / "gpu0.sock"
    assert wire.compute_mode(path, EXCLUSIVE) == EXCLUSIVE
    first = harness.stranger("init", "context") if holder == "process" else harness.client("init", "context")
    assert first.ask(f"attribute {COMPUTE_MODE}") == f"{READY} {EXCLUSIVE}"
    assert first.ask("context") == READY
    second = harness.stranger("init")
    assert second.ask("context") == "DEVICE_UNAVAILABLE"
    if holder == "mps":
        harness.client("init", "context")
        assert harness.command("quit -t 0") == ""
    else:
        assert harness.client().ask("init") == "MPS_CONNECTION_FAILED"  # no server can start
        harness.gone(first)
    assert second.ask("context") == READY
    assert wire.compute_mode(path, PROHIBITED) == PROHIBITED
    assert second.ask("context") == "DEVICE_UNAVAILABLE"
    assert wire.compute_mode(path, 0) == 0
    assert second.ask("context") == READY


def test_visible_devices_of_the_daemon_are_renumbered_for_clients(tmp_path: Path) -> None:
    harness = MpsHarness(tmp_path, count=2)
    try:
        assert harness.control("-d", CUDA_VISIBLE_DEVICES="1").returncode == 0
        client = harness.client("init", "context")
        assert client.ask("count") == f"{READY} 1"
        assert [len(harness.counters(number)["clients"]) for number in (0, 1)] == [0, 1]
        assert harness.client(CUDA_VISIBLE_DEVICES="1").ask("init") == "NO_DEVICE"
    finally:
        harness.close()


def test_server_supports_48_contexts(harness: MpsHarness) -> None:
    client, other = harness.client("init"), harness.client("init")
    assert client.ask(*["context"] * 48) == READY
    assert other.ask("context") == "MPS_MAX_CLIENTS_REACHED"
    assert harness.stranger("init", "context").ask("sync") == READY
    assert client.ask("destroy") == READY
    assert other.ask("context") == READY
