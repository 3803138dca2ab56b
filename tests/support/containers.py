"""Programs in namespaces like those of containers: own pids and mounts, and the node's directory at another path."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_processes import COTENANT, NodeHarness


class Container:
    """Runs commands of cotenant in new namespaces, which have the node's runtime directory only at another path."""

    def __init__(self, node_harness: NodeHarness, *flags: str, proc: bool = True) -> None:
        self.node_harness = node_harness
        self.home = Path(tempfile.mkdtemp(prefix="ct-inside-", dir="/tmp"))
        self.runtime = self.home / "run"
        self.runtime.mkdir()
        self._unshare = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            *(["--mount-proc"] if proc else []),
            *flags,
        ]
        self.environ = {
            **{
                name: value
                for name, value in node_harness.environ.items()
                if not value.startswith(str(node_harness.home))
            },
            "COTENANT_DIRECTORY": str(self.home),
            "HOME": str(self.home),
        }
        try:
            probe = subprocess.run([*self._unshare, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("the program unshare is not installed")
        if probe.returncode:
            pytest.skip(f"namespaces are not permitted here: {probe.stderr.strip()}")

    def start(self, *arguments: str, before: str = "", **options: Any) -> subprocess.Popen[str]:
        """Start a command of cotenant inside; `before` is a shell command to run first."""
        node_harness, words = self.node_harness, shlex.join([*COTENANT, *arguments])
        mounts = (
            f"mount --bind {node_harness.directories.runtime} {self.runtime} && mount -t tmpfs none {node_harness.home}"
        )
        script = f"set -e; {mounts}; {before or ':'}; cd /; exec {words}"
        command = [*self._unshare, "sh", "-c", script]
        return node_harness.open(command, env=self.environ, **options)

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)
