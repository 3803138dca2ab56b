"""The kubelet plugin when any single request to the API server fails, before or after it took effect."""

import json
from typing import Any

import pytest

from cotenant.node.model.event import GpuLost, GpuRecovered
from tests.support.node_in_process import until
from tests.support.plugin_api import NODE, FakeApi
from tests.support.plugins import CLAIM, PluginHarness

pytestmark = pytest.mark.live
CONFLICT, TIMEOUT = 409, 504


class OneFault:
    """Lets one request to the API server fail, by its number."""

    def __init__(self, api: FakeApi, number: int, status: int, *, is_applied: bool) -> None:
        self._handle, self._number, self._status, self._is_applied = api.handle, number, status, is_applied
        self.requests = 0
        api.handle = self.handle  # type: ignore[method-assign]

    def handle(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        self.requests += 1
        if self.requests != self._number:
            return self._handle(method, target, body)
        if self._is_applied:
            self._handle(method, target, body)
        return self._status, {"kind": "Status", "code": self._status, "message": "by the test"}


def outcome(number: int, status: int, *, is_applied: bool) -> tuple[int, object]:
    """Run a plugin through the loss of a GPU and the preparation of a claim; return its requests and the end.

    Everything that the plugin or the kubelet repeats is repeated once.
    """
    with PluginHarness() as harness:
        harness.api.add_pod()
        harness.api.add_claim()
        harness.start()
        fault = OneFault(harness.api, number, status, is_applied=is_applied)
        for event, health in ((GpuLost(1, "Xid 79"), "disabled"), (GpuRecovered(1), "init")):
            harness.observe(3)
            harness.node.loop.post(event)
            until(lambda health=health: harness.node.honest().devices[1].health.value == health)  # type: ignore[misc]
            harness.observe(3)
            harness.observe(3)
        [answer] = harness.kubelet.prepare(CLAIM).values()
        if answer.error:
            [answer] = harness.kubelet.prepare(CLAIM).values()
        harness.observe(3)
        report = harness.api.objects[f"/apis/cotenant.dev/v1alpha1/gpunodes/{NODE}"]["status"]
        report = {name: report[name] for name in ("gpus", "tenants", "version")}
        assert harness.api.slice is not None
        devices = [{**device, "taints": None} for device in harness.api.slice["spec"]["devices"]]
        tainted = [device["name"] for device in harness.api.slice["spec"]["devices"] if "taints" in device]
        specs = [json.loads(path.read_text())["devices"][0]["name"] for path in harness.cdi()]
        return fault.requests, (report, devices, tainted, specs)


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("status", [CONFLICT, TIMEOUT])
def test_one_failed_request_changes_nothing_in_the_end(status: int, is_applied: bool) -> None:
    total, expected = outcome(0, status, is_applied=is_applied)
    assert total > 8
    for number in range(1, total + 1):
        _, found = outcome(number, status, is_applied=is_applied)
        assert found == expected, f"request {number} failed"
