"""A running node exposes metrics and events, writes a JSON log, and survives hostile readers."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.support.node_processes import NodeHarness, until

pytestmark = pytest.mark.live

HOSTILE = (b"GET /metr", b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (1 << 20), b"\x00" * 100)


def address_of(node_harness: NodeHarness, log: Path) -> str:
    match = until(lambda: re.search(r"http://127\.0\.0\.1:\d+/metrics", log.read_text()))
    return str(match[0])


def scrape(address: str) -> str:
    """Return the page; a node without CPU time for long may take a waiting client for a stalled one and disconnect."""

    def page() -> str:
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return str(answer.read().decode())
        except (OSError, http.client.HTTPException):
            return ""

    return str(until(page))


def sample(page: str, name: str) -> float:
    match = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert match, name
    return float(match[1])


@pytest.fixture
def watched(node_harness: NodeHarness) -> tuple[NodeHarness, str]:
    log = node_harness.home / "said"
    with log.open("wb") as file:
        node_harness.node("--metrics", "127.0.0.1:0", "--gpu", "a=16GiB", "--log", "json", stderr=file)
    return node_harness, address_of(node_harness, log)


def test_metrics_exist_from_the_start_and_end_with_their_tenant(watched: tuple[NodeHarness, str]) -> None:
    node_harness, address = watched
    before = scrape(address)
    assert sample(before, 'cotenant_gpu_state{gpu="0",name="a",state="init"}') == 1
    assert sample(before, 'cotenant_node_tenants{kind="online"}') == 0
    web = node_harness.tenant("web", "--online", "--memory", "1GiB", "--", "sleep", "600")
    series = 'cotenant_tenant_memory_quota_bytes{gpu="0",kind="online",tenant="web"}'
    page = until(lambda: page if series in (page := scrape(address)) else "")
    assert sample(page, series) == 1 << 30
    assert re.findall(r"^# TYPE (\S+)", page, re.MULTILINE) == re.findall(r"^# TYPE (\S+)", before, re.MULTILINE)
    assert node_harness.run("run", "--memory", "64GiB", "--name", "greedy", "--", "true").returncode == 2
    web.terminate()
    web.wait(60)
    page = until(lambda: page if series not in (page := scrape(address)) else "")
    assert 'tenant="web"' not in page
    assert sample(page, 'cotenant_node_refusals_total{reason="no-memory"}') == 1
    assert sample(page, 'cotenant_node_events_total{event="joined"}') == 1
    records = [json.loads(line) for line in (node_harness.home / "said").read_text().splitlines()]
    assert {"started", "joined", "refused", "left"} <= {record["event"] for record in records}
    assert all(set(record) == set(records[0]) for record in records)


def test_hostile_readers_do_not_affect_others(watched: tuple[NodeHarness, str]) -> None:
    node_harness, address = watched
    host, port = address.split("/")[2].split(":")
    set_neighbour_count = []
    for number in range(200):
        connection = socket.create_connection((host, int(port)), 60)
        set_neighbour_count.append(connection)
        with contextlib.suppress(OSError):  # it may have been let go already
            connection.sendall(HOSTILE[number % len(HOSTILE)])
    web = node_harness.tenant("web")
    until(lambda: 'tenant="web"' in scrape(address))
    for connection in set_neighbour_count:
        connection.close()
    assert web.poll() is None
    assert node_harness.names() == ["web"]


def test_events_are_followed_across_a_node_restart(node_harness: NodeHarness) -> None:
    follower = node_harness.start("events", "--follow")
    lines = follower.stdout
    assert lines is not None
    node_harness.node()
    assert " started: 64 slots" in lines.readline()
    web = node_harness.tenant("web")
    assert " web joined in slot 0/1" in lines.readline()
    node_harness.kill_node()
    node_harness.node()
    assert "1 tenant expected back" in lines.readline()
    assert " web reconnected" in lines.readline()
    web.kill()
    assert " warning: web was lost" in lines.readline()
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, out, err) == (0, "", "")
    explained = node_harness.run("explain", "web")
    assert explained.stdout.startswith("web is gone\n1. web was lost: its connection closed\n   journal, turn ")


def test_address_in_use_prevents_the_start_of_a_node(node_harness: NodeHarness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = node_harness.run("node", "--metrics", f"127.0.0.1:{taken.getsockname()[1]}", stdout=subprocess.PIPE)
    assert done.returncode == 75
    assert done.stderr.startswith("cotenant: cannot listen at node.metrics = ")
    assert not node_harness.directories.tenant_socket.exists()
