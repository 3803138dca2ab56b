"""A kubelet plugin in this process, with a node, an API server and a kubelet of the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

from cotenant.cluster.kubernetes.plugin.main import Plugin, PluginOptions
from cotenant.node import wire
from cotenant.node.model.gpu import Gpu
from cotenant.units.instant import SECOND_NS
from tests.support.kubelets import Kubelet
from tests.support.node_in_process import InProcessNode
from tests.support.plugin_api import CLAIM_UID, NODE, FakeApi

GPUS = (
    Gpu("0 Tesla V100-SXM2-16GB", 16 << 30, ("GPU-00000000-0000-0000-0000-000000000000", "0")),
    Gpu("1 NVIDIA A100-SXM4-40GB", 40 << 30, ("GPU-11111111-1111-1111-1111-111111111111", "1")),
)
CLAIM = ("team", CLAIM_UID, "job-1-gpu-0")


class PluginHarness:
    """All parts of a node below one short directory."""

    def __init__(self, gpus: tuple[Gpu, ...] = GPUS, **node_options: Any) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.api = FakeApi()
        self.kubelet = Kubelet(self.home / "kubelet")
        self.gpus = gpus
        self.node = self.start_node(**node_options)
        self.lines: list[str] = []
        self.now = 0
        self.plugin = self.make_plugin()

    def start_node(self, **options: Any) -> InProcessNode:
        """Start a node daemon."""
        node = InProcessNode(gpus=self.gpus, slots=16, most=64, **options)
        node.listener.service = lambda request: node_status(node)
        return node

    def make_plugin(self, mode: str = "auto", **options: Any) -> Plugin:
        """Return a plugin that has not started."""
        made = PluginOptions(
            node_name=NODE,
            mode=mode,
            kubelet_dir=self.kubelet.directory,
            device_plugin_dir=self.kubelet.device_plugins,
            cdi_dir=self.home / "cdi",
            home=self.home / "hook",
            directories=self.node.directories,
            **options,
        )
        return Plugin(made, self.api.client, self.lines.append)

    def start(self, mode: str = "auto", **options: Any) -> Self:
        """Start the plugin."""
        self.plugin = self.make_plugin(mode, **options)
        self.plugin.start()
        return self

    def restart(self, mode: str = "auto") -> None:
        """End the plugin without any farewell, and start another one."""
        self.plugin.stop()
        self.start(mode)

    def observe(self, seconds: int = 1) -> None:
        """Let time pass and the plugin observe."""
        self.now += seconds * SECOND_NS
        self.plugin.observe(self.now)

    def cdi(self) -> list[Path]:
        """Return the CDI specs."""
        return sorted((self.home / "cdi").glob("*")) if (self.home / "cdi").exists() else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.plugin.stop()
        self.kubelet.stop()
        self.api.__exit__()
        self.node.close()
        shutil.rmtree(self.home, ignore_errors=True)


def node_status(node: InProcessNode, uptime_ns: int | None = None) -> wire.NodeStatus:
    """Return the state of a daemon that has run as long as its clock, or this long."""
    views = node.machine.tenants()
    return wire.NodeStatus(
        wire.VERSION,
        "test",
        os.getpid(),
        node.clock.now() if uptime_ns is None else uptime_ns,
        str(node.home),
        str(node.home),
        "",
        [],
        node.machine.settings.slots,
        len(views),
        0,
        list(node.machine.settings.gpus),
        node.machine.watches(),
        "",
        0,
        0,
        "off",
    )
