"""The plugin on an API server whose feature gates are off: it says which, and serves the device plugin if it may."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_lab.kubernetes.cluster import TestControlPlane

pytestmark = pytest.mark.kubernetes

GATES = ("DRAConsumableCapacity", "DRADeviceTaints")


@pytest.fixture(scope="module")
def plane() -> Iterator[TestControlPlane]:
    with TestControlPlane(feature_gates=dict.fromkeys(GATES, False)) as made:
        made.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        yield made


def command(plane: TestControlPlane, mode: str, directory: Path) -> list[str]:
    words = [sys.executable, "-m", "cotenant", "kubernetes", "plugin", f"--mode={mode}", "--node-name=n1"]
    words += [f"--kubeconfig={plane.kubeconfig}"]
    folders = ("kubelet-dir", "device-plugin-dir", "cdi-dir", "home", "runtime-dir", "state-dir")
    for folder in folders:
        (directory / folder).mkdir()
    return [*words, *(f"--{folder}={directory / folder}" for folder in folders)]


def test_the_driver_alone_ends_with_the_names_of_the_gates(plane: TestControlPlane, short_path: Path) -> None:
    done = subprocess.run(command(plane, "dra", short_path), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode not in (0, 1)
    assert "the DRA driver cannot be used" in done.stderr
    assert all(f"enable the feature gate {gate} on kube-apiserver" in done.stderr for gate in GATES)
    assert "Traceback" not in done.stderr


def test_the_device_plugin_serves_where_the_driver_cannot(plane: TestControlPlane, short_path: Path) -> None:
    process = subprocess.Popen(command(plane, "auto", short_path), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first, second = process.stderr.readline(), process.stderr.readline()
    finally:
        process.terminate()
        process.communicate()
    assert "so the device plugin serves cotenant.dev/gpu" in first
    assert all(gate in first for gate in GATES)
    assert "serves node n1 as device-plugin" in second
    assert process.returncode == 0
