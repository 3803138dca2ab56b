"""Disturbances of controller, API server, webhook and node with running Jobs: none is lost and none runs twice."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.cli import main
from cotenant.cluster.kubernetes.webhook.certificates import make_certificates, validity_of
from cotenant.runner.clock import unix_ns
from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.installation import Installation
from tests.support.kubernetes_parts import CONTROLLER, WEBHOOK, Parts
from tests.support.kubernetes_tenants import CLAIMS, JOBS, PODS, Records, Tenants, offline_job

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]

SECRET = "/api/v1/namespaces/cotenant/secrets/cotenant-webhook-certificate"
HOSTS = ("cotenant-webhook.cotenant.svc",)
DAY_NS = 86_400 * 10**9
TOTAL, KILLS = 100, 20


@pytest.fixture(scope="module")
def parts(installation: Installation) -> Parts:
    return Parts(installation)


@pytest.fixture
def tenants(parts: Parts) -> Iterator[Tenants]:
    made = Tenants(parts.cluster, Records(parts.cluster.directory / "record"))
    yield made
    made.remove()


def plain_pod(name: str) -> dict[str, Any]:
    """Return a pod that does not ask for a GPU."""
    spec = {"containers": [{"name": "main", "image": "none", "imagePullPolicy": "Never"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def gpu_pod(name: str) -> dict[str, Any]:
    """Return a pod that asks for a GPU by an annotation."""
    pod = plain_pod(name)
    pod["metadata"]["annotations"] = {"cotenant.dev/kind": "offline"}
    return pod


def test_kills_of_the_controller_and_a_restart_of_the_api_server_run_each_job_once(
    parts: Parts, tenants: Tenants
) -> None:
    cluster = parts.cluster
    names = [f"job-{number}" for number in range(TOTAL)]
    for name in names:
        tenants.start_job(name)
    killed = 0

    def finished() -> int:
        return sum("finish" in tenants.records.events(name) for name in names)

    def step() -> bool:
        nonlocal killed
        done = finished()
        if killed < KILLS and done * (KILLS + 1) >= killed * TOTAL:
            parts.kill(CONTROLLER)
            killed += 1
            if killed == KILLS // 2:
                cluster.restart_apiserver()
        return done == TOTAL

    cluster.wait("all programs have finished", step, 800)
    tenants.wait_finished(*names)
    assert killed == KILLS
    assert {tuple(tenants.records.events(name)) for name in names} == {("start", "finish")}
    pods = cluster.get(PODS)["items"]
    assert len({pod["metadata"]["labels"]["job-name"] for pod in pods}) == len(pods) == TOTAL
    claims = {claim["metadata"]["labels"]["cotenant.dev/pod-uid"] for claim in cluster.get(CLAIMS)["items"]}
    assert claims <= {pod["metadata"]["uid"] for pod in pods}


def test_a_drain_costs_no_retry_and_jobs_return(parts: Parts, tenants: Tenants) -> None:
    cluster = parts.cluster
    tenants.start_online("online").close()
    for name in ("one", "two"):
        tenants.start_job(name, waits=True)
    tenants.wait_started("one")
    before = {pod["metadata"]["uid"] for pod in cluster.get(PODS)["items"]}
    cluster.kubectl("drain", "node-0", "--pod-selector=cotenant.dev/kind", "--ignore-daemonsets", "--timeout=100s")
    try:
        cluster.wait("the Job says why its new pod waits", lambda: tenants.placed("one").get("status") == "False")
        assert "of a drained node" in tenants.placed("one")["message"]
        assert tenants.pod_of("one")["metadata"]["uid"] not in before
        assert tenants.pod_of("online", "app")["spec"].get("nodeName") is None
    finally:
        cluster.kubectl("uncordon", "node-0")
    tenants.wait_online("online")
    for name in ("one", "two"):
        tenants.records.end(name)
    tenants.wait_finished("one", "two")
    assert tenants.records.events("one") == ["start", "stop", "start", "finish"]
    starts = [event for event in tenants.records.events("two") if event != "stop"]
    assert starts[-1] == "finish"
    for name in ("one", "two"):
        status = cluster.get(f"{JOBS}/{name}")["status"]
        assert (status.get("failed", 0), status["succeeded"]) == (0, 1)


def test_during_an_outage_of_the_webhook_pods_that_ask_for_a_gpu_are_refused_and_jobs_continue_later(
    parts: Parts, tenants: Tenants
) -> None:
    cluster = parts.cluster
    tenants.start_job("running", waits=True)
    tenants.wait_started("running")
    tenants.start_job("suspended", suspend=True)
    parts.signal(WEBHOOK, "STOP")
    try:
        with pytest.raises(ApiError, match="failed calling webhook"):
            cluster.request("POST", PODS, gpu_pod("refused"))
        with pytest.raises(ApiError, match="failed calling webhook"):
            cluster.request("POST", JOBS, offline_job("refused", tenants.records.directory))
        cluster.request("POST", PODS, plain_pod("plain"))
        cluster.request("PATCH", f"{JOBS}/suspended", {"spec": {"suspend": False}})
        cluster.wait("the Job reports that its pod was refused", lambda: _refusals(parts, "suspended"))
        assert tenants.pods_of("suspended") == []
        tenants.records.end("running")
        tenants.wait_finished("running")
    finally:
        parts.signal(WEBHOOK, "CONT")
    tenants.wait_finished("suspended")
    assert tenants.records.events("running") == tenants.records.events("suspended") == ["start", "finish"]
    cluster.request("DELETE", f"{PODS}/plain", {"gracePeriodSeconds": 0})


def _refusals(parts: Parts, job: str) -> bool:
    events = parts.cluster.get(
        "/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.name={job},reason=FailedCreate"
    )
    return any("failed calling webhook" in event["message"] for event in events["items"])


def test_an_expired_certificate_is_named_by_the_check_and_replaced_by_the_webhook(
    parts: Parts, tenants: Tenants, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = parts.cluster
    parts.signal(WEBHOOK, "STOP")
    try:
        expired = make_certificates(HOSTS, unix_ns() - 500 * DAY_NS)
        encoded = [base64.b64encode(content).decode() for content in expired]
        data = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), encoded, strict=True))
        cluster.request("PATCH", SECRET, {"data": data})
        assert "the certificate expired" in _certificate_problems(parts, capsys)
    finally:
        parts.signal(WEBHOOK, "CONT")

    def is_renewed() -> bool:
        certificate = base64.b64decode(cluster.get(SECRET)["data"]["tls.crt"])
        return validity_of(certificate).until_ns > unix_ns() + 300 * DAY_NS

    cluster.wait("the webhook has made a new certificate", is_renewed)
    cluster.wait("the API server trusts it", parts.installation.webhook_answers)
    tenants.start_job("trusted")
    tenants.wait_finished("trusted")
    assert _certificate_problems(parts, capsys) == ""


def _certificate_problems(parts: Parts, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `cotenant kubernetes check` finds wrong with the certificate of the webhook."""
    capsys.readouterr()
    main(["kubernetes", "check", "--kubeconfig", str(parts.cluster.kubeconfig), "--json"])
    results = json.loads(capsys.readouterr().out)["results"]
    found = [each for each in results if each["check"] == "webhook certificate" and each["level"] == "bad"]
    return "; ".join(each["what"] for each in found)
