"""The product on a cluster whose feature gates are off, with the chart's own values: the device plugin serves pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cotenant_lab.kubernetes.binaries import cache_directory
from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.control_plane import FEATURE_GATES
from cotenant_lab.kubernetes.installation import Installation
from cotenant_lab.kubernetes.product_images import write_product_images
from tests.support.product import BUSY, PODS, RESTRICTED, Product, pod_template, train

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    directory = tmp_path_factory.mktemp("fallback")
    archive = write_product_images(directory, cache_directory())
    gates = dict.fromkeys(FEATURE_GATES, False)
    with TestCluster(1, images=[archive], feature_gates=gates, keep_logs=directory / "logs") as cluster:
        with Installation(cluster) as installation:
            made = Product(installation)
            yield made
            cluster.kubectl("delete", "jobs,pods", "--all", "--wait=true")
        assert installation.leftovers() == []
    assert cluster.leftovers() == []


def test_nodes_and_logs_say_that_the_device_plugin_is_used_and_why(product: Product) -> None:
    assert product.installation.status()["allocation"] == "device-plugin"
    words = ("logs", "daemonset/cotenant-node", "-c", "plugin")
    log = product.cluster.kubectl("-n", "cotenant", *words)
    assert "so the device plugin serves cotenant.dev/gpu" in log
    done = product.run("kubernetes", "check")
    assert done.returncode == 0, done.stdout
    for gate in FEATURE_GATES:
        assert f"enable the feature gate {gate}" in log
        assert f"the feature gate {gate} is off, so the device plugin is used" in done.stdout


def test_pods_run_with_a_warning_and_survive_a_restart_of_the_kubelet(product: Product) -> None:
    annotations = {"kind": "online", "slo": "50ms", "memory": "1GiB"}
    made: dict[str, Any] = pod_template(BUSY, annotations, container={"securityContext": RESTRICTED})
    made["metadata"]["name"] = "placed"
    text = product.create_text({"apiVersion": "v1", "kind": "Pod", **made})
    assert "Warning: the cluster lacks what claims need, so the device plugin allocates the GPU" in text
    product.wait_running("placed")
    spec = product.get("placed")["spec"]
    assert spec["containers"][0]["resources"]["limits"]["cotenant.dev/gpu"] == "1"
    assert "resourceClaims" not in spec
    tenant = product.installation.tenant_of("placed")
    assert tenant is not None
    assert (tenant["kind"], tenant["memoryBytes"], len(tenant["gpus"])) == ("online", 1 << 30, 1)
    kubelet = product.cluster.nodes[0].kubelet
    kubelet.kill()
    kubelet.start()
    product.installation.wait_ready()
    assert product.installation.tenant_of("placed") == tenant
    product.delete("placed")


def test_offline_jobs_run_without_a_round_and_gangs_are_refused(product: Product) -> None:
    product.job("short", train(10), {"kind": "offline", "memory": "1GiB"})
    product.wait("it has finished", lambda: _phases(product) == ["Succeeded"])
    gang: dict[str, Any] = pod_template(train(1), {"kind": "offline", "gang": "g", "gang-size": "2"})
    gang["metadata"]["name"] = "member"
    text = product.create_text({"apiVersion": "v1", "kind": "Pod", **gang})
    assert "needs placement rounds, which this cluster does not have" in text
    assert "member" not in {pod["metadata"]["name"] for pod in product.cluster.get(PODS)["items"]}


def _phases(product: Product) -> list[str]:
    return [pod["status"].get("phase") for pod in product.pods_of("short")]
