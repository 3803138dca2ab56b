"""Can a running node be watched: figures around tenants, hostile readers, events as they come, a log in JSON?"""

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

from tests.e2e.stage import Stage, until

HOSTILE = (b"GET /metr", b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (1 << 20), b"\x00" * 100)


def address_of(stage: Stage, log: Path) -> str:
    found = until(lambda: re.search(r"http://127\.0\.0\.1:\d+/metrics", log.read_text()))
    return str(found[0])


def scrape(address: str) -> str:
    """The page; a node that got no processor for long takes whoever waits for one that never asks, and hangs up."""

    def page() -> str:
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return str(answer.read().decode())
        except (OSError, http.client.HTTPException):
            return ""

    return str(until(page))


def sample(page: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.fixture
def watched(stage: Stage) -> tuple[Stage, str]:
    log = stage.home / "said"
    with log.open("wb") as file:
        stage.node("--metrics", "127.0.0.1:0", "--gpu", "a=16GiB", "--log", "json", stderr=file)
    return stage, address_of(stage, log)


def test_figures_are_there_before_anybody_came_and_gone_with_who_leaves(watched: tuple[Stage, str]) -> None:
    stage, address = watched
    before = scrape(address)
    assert sample(before, 'cotenant_gpu_state{gpu="0",name="a",state="init"}') == 1
    assert sample(before, 'cotenant_node_tenants{kind="online"}') == 0
    web = stage.tenant("web", "--online", "--memory", "1GiB", "--", "sleep", "600")
    series = 'cotenant_tenant_memory_quota_bytes{gpu="0",kind="online",tenant="web"}'
    page = until(lambda: page if series in (page := scrape(address)) else "")
    assert sample(page, series) == 1 << 30
    assert re.findall(r"^# TYPE (\S+)", page, re.MULTILINE) == re.findall(r"^# TYPE (\S+)", before, re.MULTILINE)
    assert stage.run("run", "--memory", "64GiB", "--name", "greedy", "--", "true").returncode == 75
    web.terminate()
    web.wait(60)
    page = until(lambda: page if series not in (page := scrape(address)) else "")
    assert 'tenant="web"' not in page
    assert sample(page, 'cotenant_node_refusals_total{reason="no-memory"}') == 1
    assert sample(page, 'cotenant_node_events_total{event="joined"}') == 1
    records = [json.loads(line) for line in (stage.home / "said").read_text().splitlines()]
    assert {"started", "joined", "refused", "left"} <= {record["event"] for record in records}
    assert all(set(record) == set(records[0]) for record in records)


def test_hostile_readers_harm_nobody(watched: tuple[Stage, str]) -> None:
    stage, address = watched
    host, port = address.split("/")[2].split(":")
    crowd = []
    for number in range(200):
        connection = socket.create_connection((host, int(port)), 60)
        crowd.append(connection)
        with contextlib.suppress(OSError):  # it may have been let go already
            connection.sendall(HOSTILE[number % len(HOSTILE)])
    web = stage.tenant("web")
    until(lambda: 'tenant="web"' in scrape(address))
    for connection in crowd:
        connection.close()
    assert web.poll() is None
    assert stage.names() == ["web"]


def test_events_are_followed_over_the_death_of_the_node_and_end_quietly(stage: Stage) -> None:
    follower = stage.start("events", "--follow")
    lines = follower.stdout
    assert lines is not None
    stage.node()
    assert " started: 64 slots" in lines.readline()
    web = stage.tenant("web")
    assert " web joined in slot 0/1" in lines.readline()
    stage.kill_node()
    stage.node()
    assert "1 tenant expected back" in lines.readline()
    assert " web is back" in lines.readline()
    web.kill()
    assert " warning: web is gone" in lines.readline()
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, out, err) == (0, "", "")
    told = stage.run("explain", "web")
    assert told.stdout.startswith("web is gone\n1. web is gone: lost: its connection closed\n   journal, turn ")


def test_an_address_that_is_taken_stops_a_node_before_it_is_one(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = stage.run("node", "--metrics", f"127.0.0.1:{taken.getsockname()[1]}", stdout=subprocess.PIPE)
    assert done.returncode == 75
    assert done.stderr.startswith("cotenant: cannot serve at node.metrics = ")
    assert not stage.places.socket.exists()
