"""Disturbances of a node with running tenants: restarts, kills, upgrades, an absent daemon and a lost GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cotenant import __version__
from cotenant_lab.kubernetes.installation import Installation
from cotenant_lab.kubernetes.product_images import NEXT_TAG, NEXT_VERSION
from tests.support.kubernetes_parts import DAEMON, PLUGIN, Parts
from tests.support.kubernetes_tenants import GPU_NODE, JOBS, SLICES, Records, RequestLoop, Tenants
from tests.support.product import BUSY, Product

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

DISABLED = "cotenant.dev/disabled"
NO_OFFLINE = "cotenant.dev/no-offline"


class Steady(NamedTuple):
    """Tenants that run during all disturbances: an online pod with requests, and the Job `steady`."""

    tenants: Tenants
    requests: RequestLoop
    containers: dict[str, tuple[str, int]]

    def check(self) -> None:
        """Fail if the tenants were disturbed; wait for further answers of the online pod."""
        answered = self.requests.answered
        self.tenants.cluster.wait("requests are answered", lambda: self.requests.answered > answered + 5)
        assert self.requests.failures == []
        assert self.tenants.records.events("steady") == ["start"]
        present = self.tenants.containers()
        assert {name: present.get(name) for name in self.containers} == self.containers


@pytest.fixture(scope="module")
def parts(installation: Installation) -> Parts:
    return Parts(installation)


@pytest.fixture
def tenants(parts: Parts) -> Iterator[Tenants]:
    made = Tenants(parts.cluster, Records(parts.cluster.directory / "record"))
    yield made
    made.remove()


@pytest.fixture
def steady(tenants: Tenants) -> Iterator[Steady]:
    requests = tenants.start_online("online")
    tenants.start_job("steady", waits=True)
    tenants.wait_started("steady")
    tenants.cluster.wait("the kubelet reports both", lambda: len(tenants.containers()) == 2)
    made = Steady(tenants, requests, tenants.containers())
    made.check()
    yield made
    requests.close()
    tenants.records.end("steady")
    tenants.wait_finished("steady")
    assert tenants.records.events("steady") == ["start", "finish"]


def epoch(tenants: Tenants) -> int:
    return int(tenants.cluster.get(GPU_NODE)["status"]["epoch"])


def devices(tenants: Tenants) -> dict[str, list[str]]:
    """Return the taints of the published GPUs by their names."""
    found: dict[str, list[str]] = {}
    for each in tenants.cluster.get(SLICES)["items"]:
        for device in each["spec"].get("devices") or ():
            found[device["name"]] = [taint["key"] for taint in device.get("taints", ())]
    return found


def is_healthy(tenants: Tenants) -> bool:
    return devices(tenants) == {"gpu-0": [], "gpu-1": []}


def test_restarts_and_kills_leave_running_pods_alone(parts: Parts, steady: Steady) -> None:
    tenants, cluster = steady.tenants, parts.cluster
    before = epoch(tenants)
    parts.kill(DAEMON)
    cluster.wait("the new daemon reports", lambda: epoch(tenants) > before)
    steady.check()
    tenants.start_job("after-daemon")
    tenants.wait_finished("after-daemon")
    parts.kill(PLUGIN)
    tenants.start_job("after-plugin")
    tenants.wait_finished("after-plugin")
    steady.check()
    parts.node.kubelet.kill()
    tenants.start_job("after-kubelet")
    parts.node.kubelet.start()
    tenants.wait_finished("after-kubelet")
    steady.check()
    for part in (PLUGIN, DAEMON):
        parts.signal(part, "KILL")
    parts.node.kubelet.restart()
    tenants.start_job("after-all")
    tenants.wait_finished("after-all")
    steady.check()
    for job in ("after-daemon", "after-plugin", "after-kubelet", "after-all"):
        assert tenants.records.events(job) == ["start", "finish"]


def test_an_upgrade_gives_new_pods_the_new_hook_and_leaves_the_old_one_to_running_pods(
    parts: Parts, steady: Steady
) -> None:
    tenants, installation = steady.tenants, parts.installation
    old = tenants.records.hook("steady")
    assert steady.requests.hooks == {old}
    installation.upgrade({"images": {"node": {"tag": NEXT_TAG}, "controller": {"tag": NEXT_TAG}}})
    parts.cluster.wait("the new version reports", lambda: installation.status()["version"] == NEXT_VERSION)
    tenants.start_job("upgraded")
    tenants.wait_finished("upgraded")
    assert tenants.records.hook("upgraded") == old.replace(__version__, NEXT_VERSION) != old
    steady.check()
    assert steady.requests.hooks == {old}
    installation.upgrade({"images": {"node": {"tag": ""}, "controller": {"tag": ""}}})
    parts.cluster.wait("the old version reports", lambda: installation.status()["version"] == __version__)
    tenants.start_job("downgraded")
    tenants.wait_finished("downgraded")
    assert tenants.records.hook("downgraded") == old
    steady.check()


def test_while_the_daemon_does_not_answer_pods_run_on_and_new_ones_wait_with_a_reason(
    parts: Parts, steady: Steady
) -> None:
    tenants, cluster = steady.tenants, parts.cluster
    parts.signal(DAEMON, "STOP")
    try:
        cluster.wait("the GPUs are tainted", lambda: set(map(tuple, devices(tenants).values())) == {(DISABLED,)})
        cluster.wait("the node reports it", lambda: _ready(tenants)["status"] == "False")
        assert _ready(tenants)["reason"] == "DaemonDown"
        tenants.start_job("late")
        cluster.wait("the new pod says why it waits", lambda: tenants.placed("late").get("status") == "False")
        assert "disabled" in tenants.placed("late")["message"]
        steady.check()
        assert tenants.records.events("late") == []
    finally:
        parts.signal(DAEMON, "CONT")
    tenants.wait_finished("late")
    cluster.wait("the GPUs are healthy", lambda: is_healthy(tenants))
    pod = tenants.pod_of("steady")["metadata"]["name"]
    cluster.wait("its speed is measured", lambda: bool(speed_ppm(parts, pod)))
    assert 0 < speed_ppm(parts, pod) <= 1_000_000
    assert _ready(tenants)["status"] == "True"
    assert tenants.records.events("late") == ["start", "finish"]


def speed_ppm(parts: Parts, pod: str) -> int:
    return int((parts.installation.tenant_of(pod) or {}).get("ratePpm", 0))


def _ready(tenants: Tenants) -> dict[str, Any]:
    conditions = tenants.cluster.get(GPU_NODE)["status"]["conditions"]
    return next(each for each in conditions if each["type"] == "Ready")


def test_a_lost_gpu_gets_no_pods_until_it_answers_again(parts: Parts, tenants: Tenants) -> None:
    cluster = parts.cluster
    parts.installation.in_node("cotenant", "softgpu", "fault", "device-lost", "--gpu", "1")
    cluster.wait("the GPU is tainted", lambda: devices(tenants) == {"gpu-0": [], "gpu-1": [DISABLED]})
    tenants.start_job("first", waits=True)
    tenants.wait_started("first")
    tenants.start_job("second", waits=True)
    cluster.wait("the other Job says why it waits", lambda: tenants.placed("second").get("status") == "False")
    message = tenants.placed("second")["message"]
    assert "1 held" in message
    assert "1 disabled" in message
    parts.installation.in_node("cotenant", "softgpu", "reset", "1")
    cluster.wait("the GPU is healthy again", lambda: is_healthy(tenants))
    tenants.wait_started("second")
    assert tenants.records.events("first") == ["start"], "both run at the same time"
    for job in ("first", "second"):
        tenants.records.end(job)
    tenants.wait_finished("first", "second")
    assert [tenants.records.events(job) for job in ("first", "second")] == [["start", "finish"]] * 2


def test_jobs_of_a_lost_gpu_continue_on_another_without_a_lost_retry(
    parts: Parts, tenants: Tenants, product: Product
) -> None:
    cluster = parts.cluster
    tenants.start_job("moved", waits=True)
    tenants.wait_started("moved")
    first = tenants.pod_of("moved")["metadata"]
    gpu = product.gpu_of(first["name"])
    parts.installation.in_node("cotenant", "softgpu", "fault", "device-lost", "--gpu", gpu.removeprefix("gpu-"))
    cluster.wait("its GPU is tainted", lambda: devices(tenants)[gpu] == [DISABLED])
    cluster.wait("it has a new pod", lambda: _is_replaced(tenants, "moved", first["uid"]))
    cluster.wait("it runs again", lambda: tenants.records.events("moved").count("start") == 2)
    assert product.gpu_of(tenants.pod_of("moved")["metadata"]["name"]) not in ("", gpu)
    tenants.records.end("moved")
    tenants.wait_finished("moved")
    assert tenants.records.events("moved") == ["start", "stop", "start", "finish"]
    assert not cluster.get(f"{JOBS}/moved")["status"].get("failed")
    parts.installation.in_node("cotenant", "softgpu", "reset", gpu.removeprefix("gpu-"))
    cluster.wait("the GPU is healthy again", lambda: is_healthy(tenants))


def _is_replaced(tenants: Tenants, job: str, uid: str) -> bool:
    return any(pod["metadata"]["uid"] != uid for pod in tenants.pods_of(job))


def test_a_throttled_gpu_gets_no_offline_pods_until_it_recovers(
    parts: Parts, tenants: Tenants, product: Product
) -> None:
    cluster, in_node = parts.cluster, parts.installation.in_node
    product.pod("busy", BUSY, {"kind": "online", "memory": "2GiB", "share": "30%"})
    product.wait_running("busy")
    gpu = product.gpu_of("busy")
    slow = ("cotenant", "softgpu", "fault", "slow-clock", "--gpu", gpu.removeprefix("gpu-"))
    in_node(*slow, "--factor", "0.55", "--for", "600s")
    cluster.wait("the GPU is tainted", lambda: devices(tenants)[gpu] == [NO_OFFLINE])
    tenants.start_job("first", waits=True)
    tenants.wait_started("first")
    assert product.gpu_of(tenants.pod_of("first")["metadata"]["name"]) != gpu
    tenants.start_job("second")
    cluster.wait("the other Job says why it waits", lambda: tenants.placed("second").get("status") == "False")
    assert tenants.placed("second")["message"] == "None of 2 GPUs is open: 1 held, 1 unhealthy"
    assert product.tenant_state("busy") == "running"
    in_node(*slow, "--factor", "1", "--for", "1s")
    product.delete("busy")  # a GPU that is always busy does not count as calm
    cluster.wait("the GPU is healthy again", lambda: is_healthy(tenants))
    tenants.wait_finished("second")
    assert tenants.records.events("first") == ["start"], "the other GPU was held all the time"
