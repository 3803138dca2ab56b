"""Deaths of processes: killed clients release everything, and a dead server is a lost device."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cotenant.softgpu import manage
from tests.support.effort import examples
from tests.support.node_in_process import until
from tests.support.software_gpus import run, start

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

KILLS = examples(60, 2000)
CLIENTS = 4


def await_work(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n", process.communicate()


def counters_after_deaths(directory: Path) -> dict[str, Any]:
    """Return the counters once the server has handled the death of every client."""
    until(lambda: not manage.inspect(directory, 0)["clients"])
    return manage.inspect(directory, 0)


def is_client(directory: Path, pid: int) -> bool:
    return any(client["pid"] == pid for client in manage.inspect(directory, 0)["clients"])


def test_memory_use_returns_to_zero_after_many_kills(softgpu: Path) -> None:
    rng = random.Random(7)
    clients = [start(softgpu, "crasher.py", str(seed)) for seed in range(CLIENTS)]
    for kill in range(KILLS):
        select.select([], [], [], rng.random() * 0.15)  # anywhere between its start and the middle of its work
        index = rng.randrange(CLIENTS)
        if kill % 2:  # but every other one has become a client of the device
            until(partial(is_client, softgpu, clients[index].pid))
        assert clients[index].poll() is None, clients[index].communicate()
        clients[index].kill()
        clients[index].communicate()
        clients[index] = start(softgpu, "crasher.py", str(CLIENTS + kill))
    for client in clients:
        client.kill()
        client.communicate()
    counters = counters_after_deaths(softgpu)
    assert counters["memory_free_bytes"] == counters["memory_bytes"]
    assert counters["counters"]["memory_bytes"] == 0
    assert counters["connected"] >= KILLS // 2
    assert counters["connected"] == counters["left"]
    assert "computed" in run(softgpu, "compute.py")


def test_a_dead_server_is_a_lost_device(softgpu: Path) -> None:
    tenant = start(softgpu, "tenant.py")
    await_work(tenant)
    os.kill(manage.inspect(softgpu, 0)["pid"], signal.SIGKILL)
    out, err = tenant.communicate(timeout=60)
    assert tenant.returncode == 0, err
    assert out.strip() == "CUDA_ERROR_DEVICE_UNAVAILABLE"
    assert [gpu.alive for gpu in manage.gpus(softgpu)] == [False]


def test_a_stopped_client_blocks_no_other_client(softgpu: Path) -> None:
    tenant = start(softgpu, "tenant.py")
    await_work(tenant)
    tenant.send_signal(signal.SIGSTOP)
    try:
        assert "computed" in run(softgpu, "compute.py")
    finally:
        tenant.kill()
        tenant.communicate()
    assert counters_after_deaths(softgpu)["memory_free_bytes"] == manage.inspect(softgpu, 0)["memory_bytes"]


@pytest.mark.parametrize("wait", ["blocking", "spinning"])
def test_a_dead_server_ends_every_wait(softgpu: Path, wait: str) -> None:
    waiter = start(softgpu, "longwait.py", wait)
    await_work(waiter)
    os.kill(manage.inspect(softgpu, 0)["pid"], signal.SIGKILL)
    out, err = waiter.communicate(timeout=60)
    assert out.strip() == "CUDA_ERROR_DEVICE_UNAVAILABLE", err


def test_child_that_inherited_the_socket_keeps_no_memory(softgpu: Path) -> None:
    parent = start(softgpu, "orphan.py")
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert manage.inspect(softgpu, 0)["counters"]["memory_bytes"] == 1 << 20
    parent.kill()
    try:
        assert counters_after_deaths(softgpu)["counters"]["memory_bytes"] == 0
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()
