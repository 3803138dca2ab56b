"""The real cluster that tests with the marker `kubernetes` share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from cotenant_lab.kubernetes.binaries import cache_directory
from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.images import python_image


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Start one node with the Python image; the logs outlive the cluster in pytest's temporary directory."""
    directory = tmp_path_factory.mktemp("cluster")
    image = python_image(directory, cache_directory())
    logs = directory / "logs"
    with TestCluster(1, images=[image], keep_logs=logs, report=_report) as made:
        yield made
    assert made.leftovers() == []
