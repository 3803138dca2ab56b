"""`cotenant ps|top|jobs -A` and `cotenant explain pod`: what they read from the API, and what they say."""

import json
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import main
from cotenant.cluster.kubernetes.views import PodPhase, explain_pod, read_cluster, read_jobs
from cotenant.errors import ConfigError
from cotenant.runner.clock import rfc3339, unix_ns
from tests.support.api_server import FakeApi, fake_api

GIB = 1 << 30
CREATED = "2026-01-01T00:00:00Z"


def put_pod(
    api: FakeApi, name: str, kind: str = "offline", *, job: str = "", translated: bool = True, **fields: Any
) -> None:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": CREATED,
        "annotations": {"cotenant.dev/kind": kind, "cotenant.dev/memory": "2GiB"},
        "labels": {"cotenant.dev/kind": kind} if translated else {},
        **fields.pop("metadata", {}),
    }
    if job:
        metadata["ownerReferences"] = [{"kind": "Job", "name": job, "uid": "j", "controller": True}]
    value = {"metadata": metadata, "spec": fields.pop("spec", {}), "status": fields}
    api.put(f"/api/v1/namespaces/default/pods/{name}", value)
    api.put(f"/api/v1/pods/{name}", value)


def condition(kind: str, status: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "R", "message": message}


GATED = {"schedulingGates": [{"name": "cotenant.dev/round"}]}


@pytest.fixture
def cluster() -> Any:
    with fake_api() as (api, client):
        gpu = {
            "uuid": "u0",
            "index": 0,
            "type": "V100",
            "memoryBytes": 16 * GIB,
            "freeBytes": 8 * GIB,
            "offerPpm": 600_000,
        }
        online = [{"name": "default.web", "podUid": "uid-web", "sloNs": 10**7, "use": {"activePpm": 250_000}}]
        tenant = {"podUid": "uid-train", "name": "train", "kind": "offline", "gpus": ["u0"], "memoryBytes": 2 * GIB}
        status = {
            "observedAt": rfc3339(unix_ns()),
            "gpus": [{**gpu, "online": online}, {**gpu, "uuid": "u1", "index": 1, "condition": "overlimit"}],
            "tenants": [{**tenant, "progressPpm": 400_000, "ratePpm": 700_000, "state": "paused", "reason": "by hand"}],
        }
        api.put("/apis/cotenant.dev/v1alpha1/gpunodes/n1", {"metadata": {"name": "n1"}, "status": status})
        put_pod(api, "web", "online", spec={"nodeName": "n1"}, phase="Running")
        put_pod(api, "train", job="nightly", spec={"nodeName": "n1"}, phase="Running")
        waits = condition("cotenant.dev/Placed", "False", "no GPU has 2GiB free")
        put_pod(api, "late", job="nightly", spec=GATED, phase="Pending", conditions=[waits])
        put_pod(api, "new", spec=GATED, phase="Pending")
        put_pod(api, "done", job="nightly", spec={"nodeName": "n1"}, phase="Succeeded")
        job = {"metadata": {"name": "nightly", "namespace": "default", "creationTimestamp": CREATED}}
        api.put(
            "/apis/batch/v1/jobs/nightly", {**job, "spec": {"completions": 6}, "status": {"succeeded": 1, "failed": 2}}
        )
        api.put(
            "/api/v1/namespaces/default/events/e1",
            {"reason": "Waiting", "message": "no GPU has 2GiB free", "lastTimestamp": CREATED},
        )
        yield api, client


def test_pods_of_all_nodes_are_listed(cluster: Any) -> None:
    _, client = cluster
    views = {view.name: view for view in read_cluster(client).pod_views()}
    assert {name: view.phase for name, view in views.items()} == {
        "web": PodPhase.RUNNING,
        "train": PodPhase.RUNNING,
        "late": PodPhase.WAITING,
        "new": PodPhase.WAITING,
    }
    train = views["train"]
    assert (train.node, train.gpus, train.progress_ppm, train.rate_ppm, train.job) == (
        *("n1", (0,), 400_000, 700_000, "nightly"),
    )
    assert views["late"].reason == "no GPU has 2GiB free"
    assert views["late"].memory_bytes == 2 * GIB
    assert views["new"].reason == "the controller has not examined it yet"
    assert "done" in {view.name for view in read_cluster(client).pod_views(with_ended=True)}


def test_gpus_of_all_nodes_are_listed(cluster: Any) -> None:
    _, client = cluster
    first, second = read_cluster(client).gpu_views(unix_ns())
    assert (first.online, first.offline, first.load_ppm) == (("default/web",), ("default/train",), 250_000)
    assert (second.condition, second.online, second.offline) == ("overlimit", (), ())


def test_jobs_are_listed_with_their_pods(cluster: Any) -> None:
    _, client = cluster
    [job] = read_jobs(client)
    assert (job.namespace, job.name, job.completions, job.succeeded, job.failed) == ("default", "nightly", 6, 1, 2)
    assert dict(job.counts) == {PodPhase.WAITING: 1, PodPhase.RUNNING: 1, PodPhase.DONE: 1}
    assert job.reason == "no GPU has 2GiB free"


@pytest.mark.parametrize(
    "name, fields, summary, cause",
    [
        ("late", {}, "default/late (offline) waits for a placement round", "no GPU has 2GiB free"),
        ("train", {}, "default/train (offline) runs on n1, GPU 0", "it runs at 70% of its speed alone on a whole GPU"),
        ("train", {}, "default/train (offline) runs on n1, GPU 0", "its node reports: paused"),
        ("train", {}, "default/train (offline) runs on n1, GPU 0", "GPU 0 is shared with 1 online tenant: default.web"),
        ("web", {}, "default/web (online) runs on n1", "its program has not used the GPU yet"),
        (
            "missed",
            {"translated": False},
            "default/missed does not use a GPU of cotenant",
            "the webhook has not translated it",
        ),
        (
            "plain",
            {"translated": False, "metadata": {"annotations": {"team": "a"}}},
            "default/plain does not use a GPU of cotenant",
            "it has no annotation of cotenant",
        ),
        (
            "queued",
            {"spec": {"schedulingGates": [{"name": "cotenant.dev/round"}, {"name": "kueue.x-k8s.io/admission"}]}},
            "default/queued (offline) waits for a placement round",
            "it waits for kueue.x-k8s.io/admission",
        ),
        (
            "refused",
            {"conditions": [condition("PodScheduled", "False", "0/3 nodes are available")]},
            "default/refused (offline) is starting, and kube-scheduler has not chosen a node",
            "0/3 nodes are available",
        ),
        (
            "limited",
            {
                "conditions": [
                    condition("PodScheduled", "False", "the claim was not found"),
                    condition("cotenant.dev/Placed", "False", "Its claim could not be created: exceeded quota"),
                ]
            },
            "default/limited (offline) is starting, and kube-scheduler has not chosen a node",
            "Its claim could not be created: exceeded quota",
        ),
        (
            "evicted",
            {"phase": "Failed", "conditions": [condition("DisruptionTarget", "True", "web needs its memory")]},
            "default/evicted (offline) has ended: Failed",
            "web needs its memory",
        ),
        (
            "leaving",
            {"phase": "Running", "spec": {"nodeName": "n1"}, "metadata": {"deletionTimestamp": CREATED}},
            "default/leaving (offline) is ending on n1",
            "its program has not used the GPU yet",
        ),
    ],
)
def test_a_pod_is_explained(cluster: Any, name: str, fields: Any, summary: str, cause: str) -> None:
    api, client = cluster
    if name not in ("late", "train", "web"):
        put_pod(api, name, **fields)
    explanation = explain_pod(client, "default", name)
    assert explanation.summary == summary
    assert any(cause in each for each in explanation.causes), explanation.causes
    assert explanation.events == ((CREATED, "Waiting: no GPU has 2GiB free"),)


def test_an_unknown_pod_is_named(cluster: Any) -> None:
    _, client = cluster
    with pytest.raises(ConfigError, match="namespace default has no such pod"):
        explain_pod(client, "default", "nothing")


def kubeconfig(tmp_path: Path, server: str) -> str:
    path = tmp_path / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "k"}}
    config = {"current-context": "c", "contexts": [context], "clusters": [{"name": "k", "cluster": {"server": server}}]}
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    "words, expected",
    [
        (["ps", "-A"], ["train", "no GPU has 2GiB free", "4 pods: 2 waiting, 2 running"]),
        (["ps", "-A", "--all"], ["5 pods: 2 waiting, 2 running, 1 done"]),
        (["ps", "-A", "-n", "default"], ["4 pods"]),
        (["top", "-A", "--once"], ["default/web", "2 GPUs, 1 with offline work", "overlimit"]),
        (["top", "-A", "--seconds", "2"], ["2 GPUs"]),
        (["jobs", "-A"], ["nightly", "1/6", "1 waiting, 1 running, 1 done", "1 job"]),
        (["jobs", "-A", "other"], ["0 jobs"]),
        (["explain", "pod", "late"], ["waits for a placement round", "1. no GPU has 2GiB free", "event at"]),
    ],
)
def test_the_commands_print_them(
    cluster: Any, words: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, client = cluster
    assert main([*words, "--kubeconfig", kubeconfig(tmp_path, client.config.server)]) == 0
    text = capsys.readouterr().out
    assert [each for each in expected if each not in text] == []


def test_messages_of_users_cannot_control_the_terminal(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api, client = cluster
    put_pod(api, "odd", conditions=[condition("DisruptionTarget", "True", "\x1b[2J gone \N{RIGHT-TO-LEFT OVERRIDE}")])
    assert main(["explain", "pod", "odd", "--kubeconfig", kubeconfig(tmp_path, client.config.server)]) == 0
    text = capsys.readouterr().out
    assert "[2J gone" in text
    assert not {"\x1b", "\N{RIGHT-TO-LEFT OVERRIDE}"} & set(text)


@pytest.mark.parametrize(
    "words, key",
    [(["ps", "-A"], "pods"), (["top", "-A"], "gpus"), (["jobs", "-A"], "jobs"), (["explain", "pod", "late"], "pod")],
)
def test_the_commands_print_json(
    cluster: Any, words: list[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, client = cluster
    assert main([*words, "--json", "--kubeconfig", kubeconfig(tmp_path, client.config.server)]) == 0
    assert json.loads(capsys.readouterr().out)[key]


def test_explain_refuses_words_that_are_no_pod(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "job", "x"]) == 2
    assert "write the name of a tenant, or: pod NAME" in capsys.readouterr().err
