"""Processes under MPS: who is a client, what it may use, and what it shares with whom."""

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
def alone(tmp_path: Path) -> Iterator[MpsHarness]:
    stage = MpsHarness(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def stage(alone: MpsHarness) -> MpsHarness:
    assert alone.control("-d").returncode == 0
    return alone


def test_a_process_is_a_client_if_and_only_if_a_daemon_lives_there(stage: MpsHarness) -> None:
    client, stranger = stage.client("init", "context"), stage.stranger("init", "context")
    server = stage.server()
    assert stage.members(server) == [str(client.pid)]
    assert {row["pid"]: bool(row["group"]) for row in stage.counters()["clients"]} == {
        client.pid: True,
        stranger.pid: False,
    }
    assert client.ask(f"attribute {MPS_ENABLED}") == f"{READY} 1"
    assert stranger.ask(f"attribute {MPS_ENABLED}") == f"{READY} 0"
    stage.gone(client)
    assert stage.members(server) == []
    assert stage.command("quit") == ""
    (stage.pipe / "control").touch()  # a file that is left over is no daemon
    assert stage.client("init", "context").ask(f"attribute {MPS_ENABLED}") == f"{READY} 0"


def test_clients_run_at_once_and_others_take_turns_with_the_server(stage: MpsHarness) -> None:
    narrow, wide = stage.client("init", "context"), stage.client("init", "context")
    for client in (narrow, wide):
        assert client.ask(f"spin {20 * MILLISECOND} 160") == READY
    assert [client.ask("sync") for client in (narrow, wide)] == [READY, READY]
    assert stage.counters()["counters"]["switches"] == 0
    assert all(not row["delayed_by"] for row in stage.counters()["clients"])
    stranger = stage.stranger("init", "context")
    blame: dict[int, set[int]] = {}
    while stranger.pid not in blame.get(narrow.pid, set()) | blame.get(wide.pid, set()):  # until they met on the device
        for client in (narrow, wide, stranger):
            assert client.ask(f"spin {100 * MILLISECOND} 160") == READY
        assert [client.ask("sync") for client in (narrow, wide, stranger)] == [READY] * 3
        counters = stage.counters()
        blame = {row["pid"]: {other["pid"] for other in row["delayed_by"]} for row in counters["clients"]}
    assert stage.counters()["counters"]["switches"] > 0
    assert wide.pid not in blame[narrow.pid]
    assert narrow.pid not in blame[wide.pid]


def test_a_percentage_binds_with_the_context_and_never_loosens(stage: MpsHarness) -> None:
    whole = stage.client("init", "context")
    server = stage.server()
    assert stage.command(f"set_active_thread_percentage {server} 50") == "50.0"
    half = stage.client("init", "context")
    third = stage.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")
    greedy = stage.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90")
    wrong = stage.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="lots")
    people = [whole, half, third, greedy, wrong]
    assert [client.ask(f"attribute {SMS}") for client in people] == [f"{READY} {n}" for n in (80, 40, 24, 40, 40)]
    assert third.ask("affinity") == f"{READY} 24"
    assert third.ask("setenv CUDA_MPS_ACTIVE_THREAD_PERCENTAGE 100", "destroy", "context", "affinity") == f"{READY} 24"
    assert whole.ask("destroy", "context", "affinity") == f"{READY} 80"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE = 'lots'" in (stage.log / "control.log").read_text()


def test_a_client_at_30_percent_uses_at_most_30_percent_of_the_sms(stage: MpsHarness) -> None:
    client = stage.client("init", "context", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")
    for blocks in (1, 24, 80, 640, 2000):
        assert client.ask(f"spin {MILLISECOND} {blocks}") == READY
    assert client.ask("context", f"spin {5 * MILLISECOND} 2000", "destroy", "sync") == READY  # in another one
    [row] = stage.counters()["clients"]
    counters = row["counters"]
    assert counters["kernels"] == 6
    assert counters["sm_ns"] <= 24 * counters["busy_ns"]
    assert counters["sm_ns"] > 20 * counters["busy_ns"]
    assert stage.counters()["counters"]["sm_ns"] == counters["sm_ns"]


def test_contexts_may_have_shares_of_their_own(stage: MpsHarness) -> None:
    client = stage.client(
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
    assert stage.stranger("init").ask("context 7") == "UNSUPPORTED_EXEC_AFFINITY"


def test_pinned_memory_is_limited_in_that_client_alone(alone: MpsHarness) -> None:
    stage = alone
    assert stage.control("-d", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=3G").returncode == 0
    tight = stage.client("init", "context", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G,1=512MB")
    free = stage.client("init", "context", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=9G")
    gigabyte = 1 << 30
    assert tight.ask(f"alloc {gigabyte}") == READY
    assert tight.ask("alloc 512") == "OUT_OF_MEMORY"
    assert free.ask(f"alloc {3 * gigabyte}") == READY
    assert free.ask("alloc 512") == "OUT_OF_MEMORY"
    assert tight.ask("free", "alloc 512") == READY
    assert tight.ask("memory").split()[2] == str(16 * gigabyte)  # the device's, as NVIDIA's driver shows it
    server = stage.server()
    assert stage.command(f"set_device_pinned_mem_limit {server} 0 5G") == ""
    later = stage.client("init", "context")
    assert later.ask(f"alloc {5 * gigabyte}") == READY
    assert later.ask("alloc 512") == "OUT_OF_MEMORY"
    assert free.ask("alloc 512") == "OUT_OF_MEMORY"


def test_a_client_below_normal_goes_after_the_others(stage: MpsHarness) -> None:
    low = stage.client("init", "context", CUDA_MPS_CLIENT_PRIORITY="1")
    normal = stage.client("init", "context")
    # 10,000 waves of 10 ms each: the process that has the same priority waits for all of them.
    assert low.ask(f"spin {100_000 * MILLISECOND} {640 * 10_000}") == READY
    assert normal.ask(f"spin {20 * MILLISECOND} 640", "sync") == READY
    assert low.ask("query") == "NOT_READY"


@pytest.mark.parametrize("holder", ["process", "mps"])
def test_exclusive_process_lets_one_process_in_and_mps_counts_as_one(stage: MpsHarness, holder: str) -> None:
    path = stage.directory / "gpu0.sock"
    assert wire.compute_mode(path, EXCLUSIVE) == EXCLUSIVE
    first = stage.stranger("init", "context") if holder == "process" else stage.client("init", "context")
    assert first.ask(f"attribute {COMPUTE_MODE}") == f"{READY} {EXCLUSIVE}"
    assert first.ask("context") == READY
    second = stage.stranger("init")
    assert second.ask("context") == "DEVICE_UNAVAILABLE"
    if holder == "mps":
        stage.client("init", "context")
        assert stage.command("quit -t 0") == ""
    else:
        assert stage.client().ask("init") == "MPS_CONNECTION_FAILED"  # no server can start
        stage.gone(first)
    assert second.ask("context") == READY
    assert wire.compute_mode(path, PROHIBITED) == PROHIBITED
    assert second.ask("context") == "DEVICE_UNAVAILABLE"
    assert wire.compute_mode(path, 0) == 0
    assert second.ask("context") == READY


def test_visible_devices_of_the_daemon_are_counted_anew(tmp_path: Path) -> None:
    stage = MpsHarness(tmp_path, count=2)
    try:
        assert stage.control("-d", CUDA_VISIBLE_DEVICES="1").returncode == 0
        client = stage.client("init", "context")
        assert client.ask("count") == f"{READY} 1"
        assert [len(stage.counters(number)["clients"]) for number in (0, 1)] == [0, 1]
        assert stage.client(CUDA_VISIBLE_DEVICES="1").ask("init") == "NO_DEVICE"
    finally:
        stage.close()


def test_a_server_has_room_for_48_contexts(stage: MpsHarness) -> None:
    client, other = stage.client("init"), stage.client("init")
    assert client.ask(*["context"] * 48) == READY
    assert other.ask("context") == "MPS_MAX_CLIENTS_REACHED"
    assert stage.stranger("init", "context").ask("sync") == READY
    assert client.ask("destroy") == READY
    assert other.ask("context") == READY
