"""What a machine must provide for a test cluster, examined before anything is built or started.

Each requirement that is not met is one sentence with a remedy. What is examined is the operation itself where that is
cheap (namespaces, an overlay, a bridge, a control group), because containers and virtual machines forbid some of them
to root as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.errors import SetupError
from cotenant_lab.kubernetes import binaries, cgroups
from cotenant_lab.kubernetes.namespaces import LINK_PREFIX, require_root

_FREE_TO_BUILD: Final = 8 << 30
_FREE_TO_RUN: Final = 2 << 30
_TIMEOUT_S: Final = 120
_SMALL_MODULE: Final = "sigs.k8s.io/yaml"
"""A module of a few files that the build of Kubernetes needs anyway."""

_REQUIRED_GO: Final = re.compile(r"^go (\d+)\.(\d+)", re.MULTILINE)
_INSTALLED_GO: Final = re.compile(r"go(\d+)\.(\d+)")

_OPERATIONS: Final = f"""set -e
mkdir upper work merged
mount -t overlay -o lowerdir=/usr,upperdir=upper,workdir=work overlay merged
ip link add br0 type bridge
ip link add {LINK_PREFIX}probe type veth peer name machine0
"""


def missing(cache: Path | None = None) -> list[str]:
    """Return one sentence for each thing that this machine lacks; an empty list if a cluster can run here."""
    is_built = all(binaries.programs_directory(name, cache).is_dir() for name in binaries.MODULES)
    try:
        require_root()
    except SetupError as error:
        found = [str(error)]  # the operations below would fail for the same reason
    else:
        found = [text for examine in (_namespaces, _control_groups) for text in examine()]
    if shutil.which("gcc") is None:
        found.append("gcc is not installed: the test cluster compiles its pause program with it")
    if not is_built:
        found += _toolchain()
    return found + list(_space(cache or binaries.cache_directory(), _FREE_TO_RUN if is_built else _FREE_TO_BUILD))


def _namespaces() -> Iterator[str]:
    """Create the namespaces of a node, and in them what a node mounts and connects; all of it ends with them."""
    with tempfile.TemporaryDirectory(prefix="cotenant-requirements-") as directory:
        command = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--mount-proc", "sh", "-c", _OPERATIONS]
        if reason := _failure(command, Path(directory)):
            remedy = "use a virtual machine, or a container with all capabilities"
            yield f"this machine cannot create the namespaces of a node ({reason}): {remedy}"


def _control_groups() -> Iterator[str]:
    name = f"{LINK_PREFIX}-requirements-{os.getpid()}"
    try:
        cgroups.create(name)
    except OSError as error:
        yield f"this machine cannot create control groups ({error}): mount /sys/fs/cgroup writable"
    finally:
        cgroups.remove(name)


def _toolchain() -> Iterator[str]:
    """Examine what only a build needs: Go and its modules."""
    source = binaries.module_source("kubernetes")
    wanted = _REQUIRED_GO.search((source / "go.mod").read_text())
    needed = f"{wanted[1]}.{wanted[2]}" if wanted else "1.25"
    if shutil.which("go") is None:
        yield f"Go is not installed: the test cluster is built from Go modules and needs Go {needed} or newer"
        return
    done = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False)
    installed = _INSTALLED_GO.search(done.stdout)
    if installed and wanted and _numbers(installed) < _numbers(wanted):
        yield f"the installed Go {installed[1]}.{installed[2]} is too old: install Go {needed} or newer"
    elif reason := _failure(["go", "mod", "download", _SMALL_MODULE], source):
        yield f"Go cannot download modules ({reason}): check the network and GOPROXY"


def _space(directory: Path, needed: int) -> Iterator[str]:
    present = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(present).free
    if free < needed:
        yield f"{present} has {free >> 30} GiB of free disk space: the test cluster needs {needed >> 30} GiB there"


def _numbers(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def _failure(command: list[str], directory: Path) -> str:
    """Run a command and return why it failed; empty if it succeeded."""
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT_S} s"
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].strip()[:200] if done.returncode else ""
