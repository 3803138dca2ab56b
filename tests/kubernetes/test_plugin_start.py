"""The start of the plugin: its options, an API server that does not answer yet, and what makes it end."""

import threading
from pathlib import Path
from typing import Any

import pytest

from cotenant.cluster.kubernetes.api import ApiError
from cotenant.cluster.kubernetes.plugin import main
from cotenant.cluster.kubernetes.plugin.main import PluginOptions
from cotenant.errors import ConfigError
from tests.support.plugins import PluginHarness

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"node_name": ""}, "--node-name"),
        ({"mode": "both"}, "--mode = 'both': choose auto, dra or device-plugin"),
        ({"offline_places": 0}, "--offline-places = 0"),
        ({"places": 65}, "--places = 65: write a number from 1 to 64"),
    ],
)
def test_wrong_option_is_named_with_its_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PluginOptions(**{"node_name": "node-a", **fields}).check()


@pytest.mark.live
def test_path_that_is_too_long_for_a_socket_is_refused() -> None:
    with PluginHarness() as harness:
        harness.kubelet.directory = Path("/tmp") / ("x" * 100)
        with pytest.raises(ConfigError, match="--kubelet-dir"):
            harness.make_plugin("dra").start()


@pytest.mark.live
def test_start_waits_for_the_api_server_and_ends_at_a_refusal() -> None:
    with PluginHarness() as harness:
        harness.api.refusals["POST", SLICES] = 503
        stopping = threading.Event()
        results: list[bool] = []

        def start() -> None:
            results.append(main._start(harness.plugin, stopping))
            harness.api.client.close()  # the connection of this thread

        waiting = threading.Thread(target=start)
        waiting.start()
        while ("POST", SLICES) not in harness.api.requests:
            stopping.wait(0.01)
        harness.api.refusals.clear()
        waiting.join()
        assert results == [True]
        harness.kubelet.register_driver()
        harness.api.refusals["POST", SLICES] = 403
        with pytest.raises(ApiError, match="status 403"):
            main._start(harness.make_plugin(), stopping)
        stopping.set()
        assert not main._start(harness.make_plugin(), stopping)
