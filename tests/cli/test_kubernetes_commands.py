"""`cotenant kubernetes`: flags, messages and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from cotenant.cli import main
from cotenant.runner.clock import rfc3339, unix_ns
from tests.support.api_server import fake_api


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def kubeconfig(tmp_path: Path, server: str) -> str:
    path = tmp_path / "kubeconfig"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_a_check_of_a_broken_cluster_shows_remedies_and_ends_with_1(tmp_path: Path, capsys: Any) -> None:
    with fake_api() as (api, client):
        api.put("/version", {"gitVersion": "v1.35.1"})
        status = {"observedAt": rfc3339(unix_ns()), "gpus": [{}]}
        api.put("/apis/cotenant.dev/v1alpha1/gpunodes/n1", {"metadata": {"name": "n1"}, "status": status})
        flags = ["--kubeconfig", kubeconfig(tmp_path, client.config.server), "--kubelet-dir", str(tmp_path / "none")]
        assert main(["kubernetes", "check", *flags]) == 1
        text = capsys.readouterr().out
        assert "Kubernetes v1.35.1" in text
        assert "-> start kube-apiserver with --runtime-config=resource.k8s.io/v1=true" in text
        assert "problems found" in text
        assert main(["kubernetes", "check", "--json", *flags]) == 1
        results = json.loads(capsys.readouterr().out)["results"]
        assert {"level": "good", "check": "nodes", "what": "1 node with 1 GPU reported", "remedy": ""} in results


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["check"], 69, "no Kubernetes API is configured"),
        (["check", "--kubeconfig", "/nowhere"], 69, "cannot read /nowhere"),
        (["webhook", "--allocation", "magic"], 2, "--allocation = 'magic': choose auto or claim or device-plugin"),
        (["webhook", "--port", "70000"], 2, "--port = '70000': write a port from 0 to 65535"),
        (["webhook", "--port", "x"], 2, "--port = 'x': write a whole number"),
        (["controller", "--fair", "maybe"], 2, "--fair = 'maybe': choose yes or no"),
        (["controller", "--round", "10"], 2, "--round = '10': write a number and a unit"),
        (["controller", "--workers", "-1"], 2, "--workers = '-1': write a whole number"),
        (["plugin", "--places", "x"], 2, "--places = 'x': write a whole number"),
        (["webhook"], 69, "no Kubernetes API is configured"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(words: list[str], code: int, message: str, capsys: Any) -> None:
    assert main(["kubernetes", *words]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_webhook_that_cannot_listen_says_so(tmp_path: Path, capsys: Any) -> None:
    with fake_api() as (_, client):
        flags = ["--kubeconfig", kubeconfig(tmp_path, client.config.server), "--address", "203.0.113.7"]
        assert main(["kubernetes", "webhook", *flags]) == 2
    assert "--port = 8443: cannot listen there" in capsys.readouterr().err
