"""The controller with its threads against an API server in memory, over HTTP."""

import contextlib
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cotenant.cluster.kubernetes.api_config import plain_api_config
from cotenant.cluster.kubernetes.controller.main import ControllerOptions, ControllerProcess
from cotenant.cluster.kubernetes.controller.metrics import PlacementMetrics, metrics_page
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.errors import ConfigError
from cotenant.runner.clock import LiveClock, monotonic_ns, pause, unix_ns
from cotenant.units.histogram import Recorder
from cotenant.units.instant import SECOND_NS
from tests.support.kubernetes_api import serve
from tests.support.kubernetes_cluster import TestCluster

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]


class RunningController:
    """A controller in a thread."""

    def __init__(self, url: str, **options: object) -> None:
        self.opened = contextlib.ExitStack()
        self.lines: list[str] = []
        clock = LiveClock(unix_ns() - monotonic_ns())
        chosen = ControllerOptions(namespace="cotenant", round_ns=SECOND_NS // 2, **options)  # type: ignore[arg-type]
        self.process = ControllerProcess(chosen, plain_api_config(url), clock, self.lines.append, self.opened)
        self.thread = threading.Thread(target=self.process.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.process.loop.stop("the test ends")
        self.process._inbox._writer.send(b"\0")
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.opened.close()


@contextlib.contextmanager
def running(url: str, **options: object) -> Iterator[RunningController]:
    controller = RunningController(url, **options)
    try:
        yield controller
    finally:
        controller.stop()


def until(cluster: TestCluster, condition: Callable[[], bool], seconds: int = 60) -> None:
    for _ in range(seconds * 20):
        with cluster.api.changed:
            cluster.schedule()
            cluster.api.changed.notify_all()
            if condition():
                return
        pause(0.05)
    raise AssertionError("it did not happen")


def phases(cluster: TestCluster) -> set[str]:
    return {pod["status"]["phase"] for pod in cluster.pods().values()}


def test_pods_are_placed_and_a_second_controller_takes_over() -> None:
    cluster = TestCluster(nodes=2, gpus=2)
    for _ in range(3):
        cluster.add_pod()
    with serve(cluster.api) as url:
        with running(url) as first:
            until(cluster, lambda: phases(cluster) == {"Running"})
            assert any("3 wait" in line for line in first.lines)
        with cluster.api.changed:
            cluster.add_pod()
        with running(url):
            until(cluster, lambda: phases(cluster) == {"Running"})
    assert set(cluster.api.released.values()) == {1}


def test_a_restart_of_the_api_server_and_expired_versions_are_survived() -> None:
    cluster = TestCluster(nodes=2, gpus=2)
    cluster.add_pod()
    with serve(cluster.api) as url:
        controller = RunningController(url)
        until(cluster, lambda: phases(cluster) == {"Running"})
    cluster.add_pod()
    cluster.api.compacted = cluster.api.version
    with serve(cluster.api, int(url.rpartition(":")[2])):
        until(cluster, lambda: phases(cluster) == {"Running"})
        assert controller.thread.is_alive()
        controller.stop()
    assert any("does not answer" in line or "failed" in line for line in controller.lines)


def test_metrics_and_health_are_served() -> None:
    cluster = TestCluster(nodes=1, gpus=1)
    cluster.add_pod()
    with serve(cluster.api) as url, running(url, metrics="127.0.0.1:0") as controller:
        until(cluster, lambda: phases(cluster) == {"Running"})
        address = next(line for line in controller.lines if "Prometheus" in line).rpartition(" ")[2]
        until(cluster, lambda: b"cotenant_controller_released_total 1.0" in _read(address))
        assert b"cotenant_controller_leader 1.0" in _read(address)
        assert _read(address.replace("/metrics", "/healthz")) == b"ok\n"


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def test_metrics_match_the_reference() -> None:
    metrics = PlacementMetrics(False, ClusterMachine().counts(), 0, Recorder().histogram(), 1, 2, 3, 4, 5, 6)
    families = list(text_string_to_metric_families(b"".join(metrics_page(lambda: metrics)).decode()))
    shown = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    document = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert shown == set(re.findall(r"`(cotenant_controller_[a-z_]+)", document))


@pytest.mark.parametrize(
    "options, message",
    [
        (ControllerOptions(place="best"), "place = 'best': write one of: match"),
        (ControllerOptions(round_ns=1), "round = '1ns': must be at least 100ms"),
        (ControllerOptions(workers=0), "workers = 0: must be at least 1"),
    ],
)
def test_wrong_options_are_explained(options: ControllerOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.settings("cotenant")
