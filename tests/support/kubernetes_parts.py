"""The processes of the installed product on the first node of a test cluster: kill, stop and continue them."""

from __future__ import annotations

import contextlib
import subprocess

from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.api import ApiError
from cotenant_lab.kubernetes.installation import Installation

DAEMON = "cotenant-node"
PLUGIN = "cotenant-plugin"
CONTROLLER = "cotenant-contro"  # the kernel keeps 15 characters of the name of a process
WEBHOOK = "cotenant-webhoo"

# The next attempt of the test reports what could not be repaired.
_WHERE_POSSIBLE = contextlib.suppress(RunFailedError, ApiError, StopIteration, OSError, subprocess.SubprocessError)


class Parts:
    """The parts by the names of their processes, which the kubelet starts again when they end."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.cluster = installation.cluster
        self.node = self.cluster.nodes[0]

    def pids(self, part: str) -> list[str]:
        """Return the processes of a part, by their numbers in the node."""
        with contextlib.suppress(RunFailedError):  # there are none
            return self.node.run(["pgrep", "-x", part]).split()
        return []

    def signal(self, part: str, name: str) -> None:
        """Send a signal to the processes of a part."""
        self.node.run(["pkill", f"-{name}", "-x", part])

    def kill(self, part: str) -> None:
        """Send SIGKILL to a part, and wait until another process has taken its place."""
        before = set(self.pids(part))
        self.signal(part, "KILL")
        self.cluster.wait(f"{part} runs again", lambda: bool(set(self.pids(part)) - before))

    def describe(self) -> str:
        """Return the state of the product, as far as the cluster still answers."""
        with _WHERE_POSSIBLE:
            return self.installation.describe()
        return "the cluster does not answer"

    def restore(self) -> None:
        """Undo what a failed test may have left: stopped processes, a closed node, faults of GPUs, another version."""
        with _WHERE_POSSIBLE:
            if not self.cluster.apiserver.is_running:
                self.cluster.restart_apiserver()
        with _WHERE_POSSIBLE:
            if not self.node.kubelet.is_running:
                self.node.kubelet.start()
        for part in (DAEMON, PLUGIN, CONTROLLER, WEBHOOK):
            with _WHERE_POSSIBLE:
                self.signal(part, "CONT")
        with _WHERE_POSSIBLE:
            self.cluster.kubectl("uncordon", self.node.name)
        for gpu in ("0", "1"):
            with _WHERE_POSSIBLE:
                slow = ("slow-clock", "--gpu", gpu, "--factor", "1", "--for", "1s")
                self.installation.in_node("cotenant", "softgpu", "fault", *slow)
            with _WHERE_POSSIBLE:
                self.installation.in_node("cotenant", "softgpu", "reset", gpu)
        images = self.installation.values.get("images", {})
        if any(image.get("tag") for image in images.values()):
            with _WHERE_POSSIBLE:
                self.installation.upgrade({"images": {name: {"tag": ""} for name in images}})
