"""ResourceSlices: what is published, when it is published again, and how missing feature gates are found."""

from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.cluster.kubernetes.plugin.slices import missing_support
from cotenant.errors import WorldError
from cotenant.node.model.event import GpuLost, GpuRecovered
from tests.support.node_in_process import until
from tests.support.plugin_api import NODE, FakeApi
from tests.support.plugins import GPUS, PluginHarness

pytestmark = pytest.mark.live
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def harness() -> Iterator[PluginHarness]:
    with PluginHarness() as made:
        made.start()
        made.observe()
        yield made


def devices(harness: PluginHarness) -> list[dict[str, Any]]:
    assert harness.api.slice is not None
    found: list[dict[str, Any]] = harness.api.slice["spec"]["devices"]
    return found


def test_slice_has_one_device_for_each_gpu(harness: PluginHarness) -> None:
    assert harness.api.slice is not None
    spec = harness.api.slice["spec"]
    assert (spec["driver"], spec["nodeName"]) == ("gpu.cotenant.dev", NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    [owner] = harness.api.slice["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "node-uid")
    first, second = devices(harness)
    assert (first["name"], second["name"]) == ("gpu-0", "gpu-1")
    assert first["attributes"] == {
        "uuid": {"string": GPUS[0].called[0]},
        "productName": {"string": "Tesla V100-SXM2-16GB"},
        "architecture": {"string": "volta"},
        "state": {"string": "healthy"},
        "index": {"int": 0},
    }
    assert second["attributes"]["architecture"] == {"string": "ampere"}
    assert first["allowMultipleAllocations"] is True
    memory = {"default": "16384Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    assert first["capacity"]["memory"] == {"value": "16384Mi", "requestPolicy": memory}
    assert first["capacity"]["share"]["value"] == "100"
    places = {"default": "0", "validRange": {"min": "0", "max": "1"}}
    assert first["capacity"]["offlinePlaces"] == {"value": "1", "requestPolicy": places}
    assert "taints" not in first


def test_unchanged_slice_is_not_written_again(harness: PluginHarness) -> None:
    for _ in range(3):
        harness.observe(70)
    writes = [request for request in harness.api.requests if request[0] in {"POST", "PUT"} and SLICES in request[1]]
    assert len(writes) == 2, "the probe, which changes nothing, and the first publication"


def test_slice_that_a_starting_kubelet_deleted_is_published_after_registration(harness: PluginHarness) -> None:
    harness.api.objects.pop(f"{SLICES}/{NODE}-gpu.cotenant.dev")
    harness.observe()
    assert harness.api.slice is None, "it is not polled every second"
    harness.kubelet.register_driver()
    harness.observe()
    assert harness.api.slice is not None


def test_slice_that_someone_deleted_is_published_again_after_a_minute(harness: PluginHarness) -> None:
    harness.api.objects.pop(f"{SLICES}/{NODE}-gpu.cotenant.dev")
    harness.observe(61)
    assert harness.api.slice is not None


def test_lost_gpu_is_tainted_until_it_recovers(harness: PluginHarness) -> None:
    harness.node.loop.post(GpuLost(1, "Xid 79"))
    until(lambda: harness.node.honest().devices[1].health.value == "disabled")
    harness.observe()
    first, second = devices(harness)
    assert "taints" not in first
    [taint] = second["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == ("cotenant.dev/disabled", "disabled", "NoSchedule")
    assert second["attributes"]["state"] == {"string": "disabled"}
    assert harness.api.slice is not None
    assert harness.api.slice["spec"]["pool"]["generation"] == 2
    harness.observe(70)
    assert harness.api.slice["spec"]["pool"]["generation"] == 2, "what the server adds to a taint is no difference"
    harness.node.loop.post(GpuRecovered(1))
    until(lambda: harness.node.honest().devices[1].health.value != "disabled")
    harness.observe()
    assert "taints" not in devices(harness)[1]
    assert devices(harness)[1]["attributes"]["state"] == {"string": "healthy"}


def test_failed_publication_is_repeated_and_reported_once(harness: PluginHarness) -> None:
    path = f"{SLICES}/{NODE}-gpu.cotenant.dev"
    harness.api.objects.pop(path)
    harness.api.refusals["POST", SLICES] = 500
    for _ in range(3):
        harness.observe(61)
    assert sum("status 500" in line for line in harness.lines) == 1
    harness.api.refusals.clear()
    harness.observe()
    assert harness.api.slice is not None
    assert any(line.startswith("recovered: ") for line in harness.lines)


def test_short_restart_of_the_node_daemon_is_not_reported(harness: PluginHarness) -> None:
    harness.node.directories.operator_socket.unlink()
    harness.observe(5)
    assert all("taints" not in device for device in devices(harness))
    harness.observe(20)
    assert all(device["taints"][0]["value"] == "disabled" for device in devices(harness))
    assert any("no node answers" in line for line in harness.lines)


@pytest.mark.parametrize("gate", ["DRAConsumableCapacity", "DRADeviceTaints"])
def test_missing_gate_is_named_and_the_device_plugin_is_used(gate: str) -> None:
    with PluginHarness() as harness:
        harness.api.missing_gates.add(gate)
        harness.start()
        assert harness.plugin.mode == "device-plugin"
        [line] = [line for line in harness.lines if "cannot be used" in line]
        assert f"enable the feature gate {gate} on kube-apiserver" in line
        assert harness.api.slice is None
        with pytest.raises(WorldError, match=gate):
            harness.make_plugin("dra").start()


def test_cluster_without_dra_is_named() -> None:
    with FakeApi() as api:
        api.missing_groups.add("/apis/resource.k8s.io")
        [sentence] = missing_support(api.client, NODE)
        assert "Kubernetes 1.34" in sentence
        api.missing_groups.clear()
        assert missing_support(api.client, NODE) == []
        assert api.slice is None
