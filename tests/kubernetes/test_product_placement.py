"""Placement on the installed product: matching, waiting reasons, gangs, evictions and progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.product import BUSY, JOBS, PLACED, Product, train

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

OFFLINE = {"kind": "offline", "memory": "1GiB"}


def is_waiting(product: Product, name: str) -> bool:
    return (product.condition(name) or {}).get("status") == "False"


def test_offline_pods_go_where_online_pods_leave_most(product: Product) -> None:
    """Two services of 60% cannot share a GPU; a third, small one joins one of them, and offline work avoids it."""
    for name in ("first", "second"):
        product.pod(name, BUSY, {"kind": "online", "memory": "2GiB", "share": "60%"})
    product.wait_running("first", "second")
    assert {product.gpu_of("first"), product.gpu_of("second")} == {"gpu-0", "gpu-1"}
    product.delete("second")
    product.wait("its capacity is free", lambda: len(product.installation.tenants()) == 1)
    product.pod("training", train(100_000), OFFLINE)
    product.wait_running("training")
    assert product.gpu_of("training") != product.gpu_of("first")
    product.pod("next", train(100_000), OFFLINE)
    product.wait_running("next")
    assert product.gpu_of("next") == product.gpu_of("first")


def test_a_service_without_a_share_leaves_its_idle_time_to_offline_pods(product: Product) -> None:
    product.pod("service", ["python3", "serve.py"], {"slo": "50ms", "memory": "2GiB"})
    product.wait_running("service")
    for name in ("training-a", "training-b"):  # one for each GPU
        product.pod(name, train(100_000), OFFLINE)
    product.wait_running("training-a", "training-b")
    assert product.gpu_of("service") in {product.gpu_of("training-a"), product.gpu_of("training-b")}
    product.pod("second", ["python3", "serve.py"], {"slo": "50ms", "memory": "2GiB", "share": "10%"})
    product.wait_running("second")
    assert product.gpu_of("second") != product.gpu_of("service"), "the scheduler counts the whole GPU as used"


def test_the_reason_why_a_pod_waits_is_a_condition_an_event_and_an_explanation(product: Product) -> None:
    for name in ("holder-a", "holder-b"):
        product.pod(name, train(100_000), OFFLINE)
    product.wait_running("holder-a", "holder-b")
    product.pod("waiting", train(1), OFFLINE)
    product.wait("the reason is written", lambda: is_waiting(product, "waiting"))
    condition = product.condition("waiting")
    assert condition["reason"] == "NoOpenGpu"
    assert condition["message"] == "None of 2 GPUs is open: 2 held"
    assert product.gate("waiting") == ["cotenant.dev/round"]
    product.wait("the event is written", lambda: bool(product.events("waiting")))
    assert [event["message"] for event in product.events("waiting")] == [condition["message"]]
    explained = product.cotenant("explain", "pod", "waiting")
    assert "None of 2 GPUs is open: 2 held" in json.dumps(explained)
    product.delete("holder-a")
    product.wait_phase("waiting", "Succeeded")
    assert product.condition("waiting")["status"] == "True"


def test_pods_that_no_gpu_can_hold_name_what_is_missing(product: Product) -> None:
    product.pod("online", BUSY, {"kind": "online", "memory": "4GiB", "share": "10%"})
    product.wait_running("online")
    product.pod("large", train(1), {"kind": "offline", "memory": "15GiB"})
    product.pod("excluded", train(1), OFFLINE, nodeSelector={"zone": "none"})
    product.wait("excluded waits", lambda: is_waiting(product, "excluded"))
    assert "its node selector, affinity or tolerations exclude" in product.condition("excluded")["message"]
    product.wait_phase("large", "Succeeded")


def test_a_gang_starts_together_or_not_at_all(product: Product) -> None:
    gang = {**OFFLINE, "gang": "team", "gang-size": "2"}
    product.pod("holder", train(100_000), OFFLINE)
    product.wait_running("holder")
    product.pod("member-0", train(100_000), gang)
    product.wait("the gang is incomplete", lambda: is_waiting(product, "member-0"))
    assert product.condition("member-0")["reason"] == "GangIncomplete"
    product.pod("member-1", train(100_000), gang)
    product.wait("both wait", lambda: is_waiting(product, "member-1"))
    assert all(product.gate(name) and not product.gpu_of(name) for name in ("member-0", "member-1"))
    product.delete("holder")
    product.wait_running("member-0", "member-1")
    assert {product.gpu_of("member-0"), product.gpu_of("member-1")} == {"gpu-0", "gpu-1"}


def test_an_eviction_costs_the_job_no_retry_and_it_continues(product: Product) -> None:
    node = product.cluster.nodes[0]
    data = Path(node.directory) / "data"
    data.mkdir(exist_ok=True)
    volumes = [{"name": "data", "hostPath": {"path": str(data), "type": "Directory"}}]
    container = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    command = train(400, "--checkpoint", "/data/steps")
    product.job("resumed", command, OFFLINE, volumes=volumes, container=container)
    product.wait("the Job has a pod", lambda: bool(product.pods_of("resumed")))
    [first] = product.pods_of("resumed")
    name = first["metadata"]["name"]
    product.wait_running(name)
    product.wait("it makes progress", lambda: (product.installation.tenant_of(name) or {}).get("progressPpm", 0) > 0)
    tenant = product.installation.tenant_of(name)
    assert tenant is not None
    product.installation.in_node("cotenant", "evict", tenant["name"])
    product.wait("the Job has finished", lambda: bool(job(product).get("succeeded")))
    assert not job(product).get("failed")
    assert (data / "steps").read_text() == "400"
    second = product.pods_of("resumed")[-1]["metadata"]["name"]
    assert second != name
    [began] = [line for line in product.logs(second).splitlines() if line.startswith("training begins")]
    assert int(began.split()[4]) > 0


def job(product: Product) -> dict[str, Any]:
    return dict(product.cluster.get(f"{JOBS}/resumed").get("status", {}))


def test_an_online_pod_is_placed_by_the_scheduler_and_has_no_gate(product: Product) -> None:
    product.pod("service", BUSY, {"slo": "50ms", "memory": "1GiB", "share": "20%"})
    product.wait_running("service")
    assert product.gate("service") == []
    assert product.condition("service", PLACED) is None
