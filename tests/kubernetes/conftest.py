"""The real cluster, and the product on it, that tests with the marker `kubernetes` share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant_lab.kubernetes.binaries import cache_directory
from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.installation import Installation
from cotenant_lab.kubernetes.product_images import write_product_images
from tests.support.kubernetes_parts import Parts
from tests.support.product import Product


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the product to the report of a failed test that uses it, and repair it for the next attempt."""
    report = yield
    installation = getattr(item, "funcargs", {}).get("installation")
    if report.failed and report.when == "call" and isinstance(installation, Installation):
        # Not `report.sections`: those are not printed for an attempt after which the test is tried again.
        parts = Parts(installation)
        if add_section := getattr(report.longrepr, "addsection", None):
            add_section("state of the product", parts.describe())
        parts.restore()
    return report


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Start one node with all images; the logs outlive the cluster in pytest's temporary directory."""
    directory = tmp_path_factory.mktemp("cluster")
    archive = write_product_images(directory, cache_directory())
    logs = directory / "logs"
    # Tests kill the parts of the product more often than a kubelet starts a container again without a long pause.
    kubelet = {"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}}
    with TestCluster(1, images=[archive], kubelet_config=kubelet, keep_logs=logs, report=_report) as made:
        yield made
    assert made.leftovers() == []


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a directory whose path leaves space for the name of a socket, whatever pytest's own directory is."""
    with tempfile.TemporaryDirectory(prefix="ck-", dir="/tmp") as directory:
        yield Path(directory)


class SharedInstallation:
    """The product on the shared cluster, installed by the first test that needs it and upgraded for other values."""

    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self._made: Installation | None = None

    def get(self, values: dict[str, Any]) -> Installation:
        """Return the installation with two software GPUs and with these values."""
        wanted: dict[str, Any] = {"controller": {"round": "1s"}, "node": {"offlinePlaces": 1}} | values
        if self._made is None:
            self._made = Installation(self._cluster, wanted, report=_report)
            self._made.install()
        elif any(self._made.values["node"][name] != value for name, value in wanted["node"].items()):
            self._made.upgrade(wanted)
        return self._made

    def close(self) -> None:
        """Remove it."""
        if self._made is not None:
            self._made.remove()
            assert self._made.leftovers() == []


@pytest.fixture(scope="session")
def shared_installation(cluster: TestCluster) -> Iterator[SharedInstallation]:
    """Remove the product from the shared cluster at the end."""
    made = SharedInstallation(cluster)
    yield made
    made.close()


@pytest.fixture(scope="module")
def installation(request: pytest.FixtureRequest, shared_installation: SharedInstallation) -> Installation:
    """Return the product with the values that the module names as VALUES."""
    return shared_installation.get(getattr(request.module, "VALUES", {}))


@pytest.fixture
def product(installation: Installation) -> Iterator[Product]:
    """Give a test the installed product, and remove the workloads of the test afterwards."""
    made = Product(installation)
    yield made
    made.clear()
