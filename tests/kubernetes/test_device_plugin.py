"""The device plugin as a kubelet sees it: registration, lists, allocation, health and restarts of the kubelet."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cluster.kubernetes.plugin import protocol
from cotenant.cluster.kubernetes.plugin.device_plugin import preferred
from cotenant.node.model.event import GpuLost, GpuRecovered
from tests.support.node_in_process import until
from tests.support.plugins import PluginHarness

SERVICE = protocol.DEVICE_PLUGIN_SERVICE


@pytest.fixture
def harness() -> Iterator[PluginHarness]:
    with PluginHarness() as made:
        made.kubelet.start()
        made.start("device-plugin", places=2)
        made.observe()
        yield made


def allocate(harness: PluginHarness, *containers: list[str]) -> Any:
    request = protocol.make(SERVICE, "AllocateRequest")
    for places in containers:
        request.container_requests.add(devices_ids=places)
    return harness.kubelet.device_call("Allocate", request)


@pytest.mark.live
def test_plugin_registers_its_resource(harness: PluginHarness) -> None:
    [request] = harness.kubelet.registered
    assert (request.version, request.endpoint) == ("v1beta1", "cotenant.dev-gpu.sock")
    assert request.resource_name == "cotenant.dev/gpu"
    assert request.options.get_preferred_allocation_available
    options = harness.kubelet.device_call("GetDevicePluginOptions", protocol.make(SERVICE, "Empty"))
    assert options == request.options


@pytest.mark.live
def test_list_shows_health_and_recovery(harness: PluginHarness) -> None:
    healthy = {f"gpu-{gpu}-{place}": "Healthy" for gpu in (0, 1) for place in (0, 1)}
    with harness.kubelet.watch_devices() as lists:
        assert next(lists) == healthy
        harness.node.loop.post(GpuLost(1, "Xid 79"))
        until(lambda: harness.node.honest().devices[1].health.value == "disabled")
        harness.observe()
        assert next(lists) == {**healthy, "gpu-1-0": "Unhealthy", "gpu-1-1": "Unhealthy"}
        harness.node.loop.post(GpuRecovered(1))
        until(lambda: harness.node.honest().devices[1].health.value != "disabled")
        harness.observe()
        assert next(lists) == healthy


@pytest.mark.live
def test_allocated_container_asks_the_node_for_its_pod(harness: PluginHarness) -> None:
    first, second = allocate(harness, ["gpu-0-0"], ["gpu-1-1"]).container_responses
    assert first == second, "the GPU is chosen when the tenant joins"
    mounts = {mount.container_path: mount for mount in first.mounts}
    assert all(mount.read_only for mount in mounts.values())
    assert "/etc/ld.so.preload" in mounts
    assert first.envs["COTENANT_REQUIRED"] == "1"
    grant = harness.plugin.grants.path("pod") / "grant"
    assert grant.read_text() == "token = pod\n"
    assert mounts["/run/cotenant/claim"].host_path == str(grant.parent)
    assert [device.name for device in first.cdi_devices] == ["cotenant.dev/gpu=claim-pod"]
    assert "image-check" in harness.cdi()[0].read_text()


@pytest.mark.live
def test_old_kubelet_gets_no_cdi_names() -> None:
    with PluginHarness() as harness:
        harness.api.objects["/api/v1/nodes/node-a"]["status"]["nodeInfo"]["kubeletVersion"] = "v1.20.15"
        harness.kubelet.start()
        harness.start("device-plugin")
        harness.observe()
        [container] = allocate(harness, ["gpu-0-0"]).container_responses
        assert not container.cdi_devices
        assert container.mounts


@pytest.mark.live
@pytest.mark.parametrize("places", [[], ["gpu-9-0"], ["gpu-0-0", "../x"], ["gpu-0-2"]])
def test_unknown_place_is_refused(harness: PluginHarness, places: list[str]) -> None:
    with pytest.raises(grpc.RpcError) as error:
        allocate(harness, places)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not a place of this node" in error.value.details()


@pytest.mark.live
@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation"])
def test_malformed_request_is_an_error_of_the_call_only(harness: PluginHarness, method: str) -> None:
    with pytest.raises(grpc.RpcError):
        harness.kubelet.device_call(method, b"\xff\xff\xff\xff")
    assert len(allocate(harness, ["gpu-0-0"]).container_responses) == 1


@pytest.mark.live
def test_preferred_places_are_on_different_gpus(harness: PluginHarness) -> None:
    request = protocol.make(SERVICE, "PreferredAllocationRequest")
    request.container_requests.add(available_deviceIDs=["gpu-0-0", "gpu-0-1", "gpu-1-1"], allocation_size=2)
    answer = harness.kubelet.device_call("GetPreferredAllocation", request)
    assert list(answer.container_responses[0].deviceIDs) == ["gpu-0-0", "gpu-1-1"]
    request.container_requests.add(available_deviceIDs=["gpu-0-0"], allocation_size=2)
    with pytest.raises(grpc.RpcError) as error:
        harness.kubelet.device_call("GetPreferredAllocation", request)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=16),
    st.integers(-1, 17),
    st.randoms(use_true_random=False),
)
def test_preference_is_a_choice_of_available_places(places: set[tuple[int, int]], size: int, rng: Any) -> None:
    available = [f"gpu-{gpu}-{place}" for gpu, place in sorted(places)]
    included = rng.sample(available, rng.randint(0, len(available)))
    chosen = preferred(available, included, size)
    if not len(included) <= size <= len(available):
        assert chosen is None
        return
    assert chosen is not None
    assert len(set(chosen)) == size
    assert set(included) <= set(chosen) <= set(available)


@pytest.mark.live
def test_restarted_kubelet_is_registered_at_again(harness: PluginHarness) -> None:
    with harness.kubelet.watch_devices() as lists:
        assert len(next(lists)) == 4
    harness.kubelet.stop()
    harness.observe()
    harness.kubelet.start()
    harness.observe()
    assert len(harness.kubelet.registered) == 2
    with harness.kubelet.watch_devices() as lists:
        assert len(next(lists)) == 4
    harness.observe()
    assert len(harness.kubelet.registered) == 2, "it registers once for each start"


@pytest.mark.live
def test_kubelet_that_is_not_there_yet_is_waited_for() -> None:
    with PluginHarness() as harness:
        harness.start("device-plugin")
        for _ in range(3):
            harness.observe()
        assert sum("no kubelet serves" in line for line in harness.lines) == 1
        harness.kubelet.start()
        harness.observe()
        assert len(harness.kubelet.registered) == 1
