"""The roles of the chart grant what the code uses, and nothing else."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.cluster import kubernetes
from cotenant.cluster.kubernetes.webhook.certificate_source import CONFIGURATIONS
from cotenant.cluster.kubernetes.webhook.main import Webhook, WebhookOptions, certificate_source
from tests.support.api_server import fake_api
from tests.support.chart import render

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
USED: dict[str, set[tuple[str, str]]] = {
    "node": {
        ("get", "nodes"),
        ("list", "pods"),
        ("create", "pods/eviction"),
        ("patch", "pods/status"),
        ("get", "gpunodes"),
        ("create", "gpunodes"),
        ("patch", "gpunodes/status"),
        ("get", "resourceclaims"),
        *((verb, "resourceslices") for verb in ("get", "create", "update", "delete")),
    },
    "controller": {
        *((verb, "pods") for verb in ("get", "list", "watch", "patch")),
        ("patch", "pods/status"),
        ("create", "pods/eviction"),
        ("create", "events"),
        *((verb, resource) for verb in ("list", "watch") for resource in ("nodes", "gpunodes")),
        *((verb, "resourceclaims") for verb in ("get", "list", "watch", "create", "delete")),
        *((verb, "leases") for verb in ("create", "get", "update")),
        *((verb, "configmaps") for verb in ("create", "get", "patch")),
    },
}
"""Verbs and resources of the requests that each part sends."""
PACKAGES = {"node": "plugin", "controller": "controller"}


def granted(component: str, values: dict[str, Any] | None = None) -> set[tuple[str, str]]:
    """Return verbs and resources that the roles of a part grant."""
    found = set()
    for each in render(values):
        if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"] == f"cotenant-{component}":
            for rule in each["rules"]:
                assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
                found |= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    return found


@pytest.mark.parametrize("component", USED)
def test_a_part_may_do_what_it_does_and_nothing_else(component: str) -> None:
    assert granted(component) == USED[component]


@pytest.mark.parametrize("component", PACKAGES)
def test_the_table_names_every_resource_that_the_code_names(component: str) -> None:
    directory = Path(next(iter(kubernetes.__path__))) / PACKAGES[component]
    named = {resource for path in sorted(directory.glob("*.py")) for resource in resources_of(path)}
    assert named == {resource for _, resource in USED[component]}


def resources_of(path: Path) -> Iterator[str]:
    """Return the resources, with subresources, for which a module builds paths."""
    module = importlib.import_module(f"cotenant.cluster.kubernetes.{path.parent.name}.{path.stem}")
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if call.func.id not in ("resource_path", "gpu_node_path"):
            continue
        arguments = [_value(argument, module) for argument in call.args]
        named = {keyword.arg: _value(keyword.value, module) for keyword in call.keywords}
        resource, position = (arguments[1], 4) if call.func.id == "resource_path" else ("gpunodes", 1)
        subresource = named.get("subresource") or (arguments[position] if len(arguments) > position else "")
        yield "/".join(part for part in (resource, subresource) if part)


def _value(node: ast.expr, module: Any) -> str:
    """Return the text of an argument; empty if it is only known at run time."""
    try:
        value = eval(compile(ast.Expression(node), "", "eval"), vars(module))
    except (NameError, AttributeError):
        return ""
    return value if isinstance(value, str) else ""


def test_the_webhook_may_do_what_it_does_and_nothing_else() -> None:
    options = WebhookOptions("127.0.0.1", 0)
    with fake_api() as (api, client):
        for plural in CONFIGURATIONS:
            path = f"/apis/admissionregistration.k8s.io/v1/{plural}/cotenant"
            api.put(path, {"metadata": {"name": "cotenant"}, "webhooks": [{"clientConfig": {}}]})
        webhook = Webhook(client, options, certificate_source(client, options), print)
        webhook.refresh()
        secret = "/api/v1/namespaces/cotenant/secrets/cotenant-webhook-certificate"
        api.put(secret, {**api.objects[secret], "data": {}})  # a damaged Secret is replaced
        webhook.refresh()
        webhook.server.server_close()
        used = set()
        for method, path in api.requests:
            parts = path.strip("/").split("/")
            plural = next(part for part in parts if part in (*CONFIGURATIONS, "secrets", "gpunodes"))
            verb = "list" if method == "GET" and parts[-1] == plural else VERBS[method]
            used.add((verb, plural))
    assert granted("webhook") == used


def test_the_webhook_of_cert_manager_may_only_read_the_sizes_of_gpus() -> None:
    assert granted("webhook", {"webhook.certificate.certManager": True}) == {("list", "gpunodes")}
