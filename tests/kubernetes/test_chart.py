"""The Helm chart renders valid objects for every choice of values, and refuses bad values with a clear message."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cotenant import __version__
from cotenant.cli import parser_for
from cotenant.cluster.kubernetes import gpu_node, names
from cotenant.cluster.kubernetes.webhook.hami import TRANSLATED
from cotenant.cluster.kubernetes.webhook.main import MUTATE_PATH, VALIDATE_PATH
from cotenant.cluster.model.cluster import GpuCondition
from cotenant.cluster.policy import LIVE
from tests.support.admission_reviews import mutated
from tests.support.chart import CHART, KUBERNETES, ROOT, find, helm, pod_specs, render, template, type_problems

EVERYTHING = {
    "node.config": '[node]\nslots = 32\n"',
    "node.runtimeClassName": "nvidia",
    "node.nodeSelector": {"gpu": "yes"},
    "node.affinity": {"nodeAffinity": {}},
    "node.softwareGpus": {"count": 2, "type": "a100"},
    "node.maxUnavailable": "10%",
    "imagePullSecrets": [{"name": "registry"}],
    "controller.fair": True,
    "controller.tolerations": [{"operator": "Exists"}],
    "webhook.certificate.certManager": True,
    "webhook.translatePlainGpu": True,
    "webhook.failurePolicy": "Ignore",
    "webhook.namespaceSelector": {"matchLabels": {"gpu": "yes"}},
    "monitoring.podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
    "monitoring.dashboard.enabled": True,
}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "default": ({}, KUBERNETES),
    "everything": (EVERYTHING, KUBERNETES),
    "claim": ({"allocation": "claim"}, KUBERNETES),
    "auto on an old cluster": ({}, "1.33.2"),
    "device plugin": ({"allocation": "device-plugin"}, "1.31.4"),
    "one replica": ({"webhook.replicas": 1, "node.metricsPort": 0, "node.restrictWrites": False}, "1.36.1"),
    "named issuer": (
        {"webhook.certificate": {"certManager": True, "issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}},
        KUBERNETES,
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_has_the_type_that_the_api_gives_it(variant: str) -> None:
    objects = render(*VARIANTS[variant])
    assert [problem for each in objects for problem in type_problems(each)] == []
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))


def test_the_type_check_finds_errors() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 7}, "spec": {"containers": [{"imag": "x"}]}}
    assert type_problems(pod) == [
        "Pod.metadata.name must be str, not 7",
        "Pod.spec.containers[0].imag is unknown",
        "Pod.spec.containers[0].name is missing",
    ]


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_helm_lint_has_no_warning(values: dict[str, Any]) -> None:
    flags = [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    done = helm("lint", "--strict", "--kube-version", KUBERNETES, str(CHART), *flags)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


BAD: list[tuple[str, Any, str]] = [
    ("webhook.failurePolicy", "Maybe", 'webhook.failurePolicy must be one of the following: "Fail", "Ignore"'),
    ("allocation", "magic", 'allocation must be one of the following: "auto", "claim", "device-plugin"'),
    ("controller.round", 10, "controller.round: Invalid type. Expected: string, given: integer"),
    ("controller.round", "10", "controller.round: Does not match pattern"),
    ("controller.replicas", 0, "controller.replicas: Must be greater than or equal to 1"),
    ("node.directories.cdi", "cdi", "node.directories.cdi: Does not match pattern"),
    ("controller.place", "fifo", 'controller.place must be one of the following: "match"'),
    ("node.places", 65, "node.places: Must be less than or equal to 64"),
    ("node.softwareGpus.type", "b200", "node.softwareGpus.type must be one of the following"),
    ("webhook.timeoutSeconds", 60, "webhook.timeoutSeconds: Must be less than or equal to 30"),
    ("webook", {"replicas": 1}, "Additional property webook is not allowed"),
    ("node.tolerations", "all", "node.tolerations: Invalid type. Expected: array, given: string"),
    ("images.node.pullPolicy", "Sometimes", "images.node.pullPolicy must be one of the following"),
]


@pytest.mark.parametrize("name, value, message", BAD, ids=[f"{name}={value}" for name, value, _ in BAD])
def test_bad_values_are_refused_with_the_field(name: str, value: Any, message: str) -> None:
    done = template({name: value})
    assert done.returncode == 1
    assert message in done.stderr


def test_every_value_is_in_the_schema_and_has_a_comment() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(value: Any, part: Any, path: str) -> None:
        if "$ref" in part:
            part = schema["definitions"][part["$ref"].rpartition("/")[2]]
        if isinstance(value, dict) and "properties" in part:
            missing = set(value) - set(part["properties"])
            assert not missing, f"{path}: {missing}"
            assert set(part["properties"]) - set(value) <= {"global", "matchLabels", "matchExpressions", "claims"} | (
                {"name", "kind", "group"} if path.endswith("issuerRef") else set()
            ), path
            for key, inner in value.items():
                check(inner, part["properties"][key], f"{path}.{key}")

    check(values, schema, "values")


def test_the_placement_policies_are_those_of_the_controller() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["controller"]["properties"]["place"]["enum"] == list(LIVE)


@pytest.mark.parametrize("name", ["cotenant-controller", "cotenant-webhook"])
def test_replicas_prefer_different_nodes(name: str) -> None:
    deployment = find(render(), "Deployment", name)
    [spread] = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]


def test_claims_are_refused_on_a_cluster_that_is_too_old() -> None:
    done = template({"allocation": "claim"}, "1.33.2")
    assert done.returncode == 1
    assert "allocation=claim needs Kubernetes 1.34 or newer, and this cluster is v1.33.2" in done.stderr
    assert "chart requires kubeVersion" in template({"allocation": "device-plugin"}, "1.29.0").stderr


@pytest.mark.parametrize(
    "variant, mode, allocation",
    [
        ("default", "auto", "auto"),
        ("auto on an old cluster", "auto", "auto"),
        ("claim", "dra", "claim"),
        ("device plugin", "device-plugin", "device-plugin"),
    ],
)
def test_plugin_and_webhook_allocate_gpus_alike(variant: str, mode: str, allocation: str) -> None:
    objects = render(*VARIANTS[variant])
    flags = [
        flag
        for spec in pod_specs(objects)
        for container in spec["containers"]
        for flag in container.get("args", ())
        if flag.startswith(("--mode", "--allocation"))
    ]
    assert sorted(flags) == [f"--allocation={allocation}", f"--mode={mode}"]


@pytest.mark.parametrize("variant", ["device plugin", "auto on an old cluster"])
def test_without_claims_there_is_no_controller_and_no_device_class(variant: str) -> None:
    kinds = {(each["kind"], each["metadata"]["name"]) for each in render(*VARIANTS[variant])}
    assert not {name for _, name in kinds if "controller" in name}
    assert "DeviceClass" not in {kind for kind, _ in kinds}
    daemon_set = find(render(*VARIANTS["device plugin"]), "DaemonSet", "cotenant-node")
    plugin = daemon_set["spec"]["template"]["spec"]["containers"][1]
    assert "--mode=device-plugin" in plugin["args"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_command_line_is_one_of_the_program(variant: str) -> None:
    count = 0
    for spec in pod_specs(render(*VARIANTS[variant])):
        for container in spec["containers"]:
            words: list[str] = [*container["command"], *container.get("args", [])]
            assert words.pop(0) == "cotenant"
            parser_for(words).parse_args(words)
            count += 1
        mounted = {volume["name"] for volume in spec["volumes"]}
        used = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        assert used == mounted
    assert count >= 3


def test_only_the_pod_of_the_node_daemon_has_rights_on_its_machine() -> None:
    rights = {"daemon": {"KILL", "SYS_PTRACE", "CHOWN"}, "plugin": {"SYS_PTRACE"}}
    for spec in pod_specs(render()):
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            assert set(context["capabilities"].get("add", ())) == rights.get(container["name"], set())
            assert not context.get("privileged")
        is_node = any(container["name"] == "daemon" for container in spec["containers"])
        assert spec.get("hostPID", False) == is_node
        assert is_node or spec["securityContext"]["runAsNonRoot"] is True


def test_the_webhooks_call_the_service_of_the_release() -> None:
    objects = render(namespace="gpu")
    service = find(objects, "Service", "cotenant-webhook")
    for kind, path in (("Mutating", MUTATE_PATH), ("Validating", VALIDATE_PATH)):
        configuration = find(objects, f"{kind}WebhookConfiguration", "cotenant")
        for webhook in configuration["webhooks"]:
            target = webhook["clientConfig"]["service"]
            assert (target["name"], target["namespace"], target["path"]) == (
                service["metadata"]["name"],
                "gpu",
                path,
            )
            assert webhook["sideEffects"] == "None"
            [expression] = webhook["namespaceSelector"]["matchExpressions"]
            assert expression["operator"] == "NotIn"
            assert {"gpu", "kube-system"} <= set(expression["values"])
    deployment = find(objects, "Deployment", "cotenant-webhook")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert "--service=cotenant-webhook" in container["args"]
    assert "--configuration=cotenant" in container["args"]


def test_a_namespace_selector_of_the_user_is_kept() -> None:
    objects = render(EVERYTHING)
    for webhook in find(objects, "MutatingWebhookConfiguration", "cotenant")["webhooks"]:
        assert webhook["namespaceSelector"]["matchLabels"] == {"gpu": "yes"}
        assert len(webhook["namespaceSelector"]["matchExpressions"]) == 1


def test_every_name_that_the_webhook_reads_is_in_the_match_conditions() -> None:
    webhooks = find(render(), "MutatingWebhookConfiguration", "cotenant")["webhooks"]
    for webhook in webhooks:
        [condition] = webhook["matchConditions"]
        prefixes = re.findall(r'startsWith\("([^"]+)"\)', condition["expression"])
        equal = re.findall(r'== "([^"]+)"', condition["expression"])
        assert all(name.startswith(tuple(prefixes)) or name in equal for name in (*TRANSLATED, *names.ANNOTATIONS))
        assert condition["expression"].count("(") == condition["expression"].count(")")


def test_the_chart_uses_the_names_of_the_code() -> None:
    objects = render(EVERYTHING)
    text = json.dumps(objects)
    device_class = find(objects, "DeviceClass", names.DEVICE_CLASS)
    assert names.DRIVER in device_class["spec"]["selectors"][0]["cel"]["expression"]
    assert names.GATE in text
    role = find(objects, "Role", "cotenant-controller")
    assert {name for rule in role["rules"] for name in rule.get("resourceNames", [])} == {
        names.LEASE,
        names.PREDICTIONS_CONFIG_MAP,
    }
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def crd_schema() -> Any:
    crd = yaml.safe_load((CHART / "crds" / "gpunodes.yaml").read_text())
    assert type_problems(crd) == []
    assert crd["metadata"]["name"] == f"{names.GPU_NODE_PLURAL}.{names.GROUP}"
    [version] = crd["spec"]["versions"]
    assert version["name"] == names.GPU_NODE_VERSION
    assert crd["spec"]["names"]["kind"] == names.GPU_NODE_KIND
    return version["schema"]["openAPIV3Schema"]["properties"]["status"]


def test_the_crd_describes_every_field_of_the_report() -> None:
    status = crd_schema()
    gpu = status["properties"]["gpus"]["items"]
    online = gpu["properties"]["online"]["items"]
    for schema, kind in (
        (status, gpu_node.GpuNodeStatus),
        (gpu, gpu_node.GpuStatus),
        (online, gpu_node.OnlineTenant),
        (online["properties"]["use"], gpu_node.Use),
        (status["properties"]["tenants"]["items"], gpu_node.TenantStatus),
    ):
        fields = msgspec.structs.fields(kind)
        extra = {"conditions"} if kind is gpu_node.GpuNodeStatus else set()
        assert set(schema["properties"]) - extra == {field.encode_name for field in fields}
        required = {field.encode_name for field in fields if field.required}
        assert set(schema.get("required", [])) >= required
    reported = {condition.value for condition in GpuCondition} - {"of a silent node"}
    assert set(gpu["properties"]["condition"]["enum"]) == reported


def test_the_dashboard_shows_metrics_that_exist() -> None:
    config_map = find(render(EVERYTHING), "ConfigMap", "cotenant-dashboard")
    dashboard = json.loads(config_map["data"]["cotenant.json"])
    documented = set(re.findall(r"`(cotenant_\w+)`", (ROOT / "docs/reference/metrics.md").read_text()))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        for metric in re.findall(r"cotenant_\w+", expression):
            assert metric in documented or metric.removesuffix("_bucket") in documented, metric


EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.name for path in EXAMPLES])
def test_the_examples_are_valid_and_accepted_by_the_webhook(path: Path) -> None:
    translated = 0
    for each in yaml.safe_load_all(path.read_text()):
        assert type_problems(each) == []
        pod = each if each["kind"] == "Pod" else each.get("spec", {}).get("template")
        if pod is None:
            continue
        if each["kind"] == "Job":
            assert mutated("Job", each)["spec"]["podFailurePolicy"]
            pod["metadata"]["ownerReferences"] = [{"kind": "Job", "controller": True}]
        pod["metadata"].setdefault("generateName", f"{each['metadata']['name']}-")
        assert mutated("Pod", pod)["spec"]["resourceClaims"]
        translated += 1
    assert translated


@pytest.mark.parametrize("name", ["node", "controller"])
def test_the_images_are_built_from_the_wheel_and_start_a_command(name: str) -> None:
    text = (ROOT / "deploy" / "images" / f"{name}.Dockerfile").read_text()
    assert "COPY dist/cotenant-*.whl" in text
    assert "[kubernetes]" in text
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    [words] = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    assert json.loads(entry) == ["cotenant"]
    parser_for(json.loads(words)).parse_args(json.loads(words))
