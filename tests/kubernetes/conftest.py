"""The real cluster, and the product on it, that tests with the marker `kubernetes` share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from cotenant_lab.kubernetes.binaries import cache_directory
from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.installation import Installation
from cotenant_lab.kubernetes.product_images import write_product_images
from tests.support.product import Product


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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


@pytest.fixture(scope="session")
def installation(cluster: TestCluster) -> Iterator[Installation]:
    """Install the product on the shared cluster, with two software GPUs."""
    with Installation(cluster, {"controller": {"round": "1s"}}, report=_report) as made:
        yield made
    assert made.leftovers() == []


@pytest.fixture
def product(installation: Installation) -> Iterator[Product]:
    """Give a test the installed product, and remove the workloads of the test afterwards."""
    made = Product(installation)
    yield made
    made.clear()
