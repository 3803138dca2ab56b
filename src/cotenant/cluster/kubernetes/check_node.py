"""Checks of the machine on which `cotenant kubernetes check` runs, if it is a node: sockets, CDI, container runtime."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.check_result import CheckResult, bad, good, note
from cotenant.units.text import counted

_CONNECT_TIMEOUT_S: Final = 5.0
_SPEC_LIMIT_BYTES: Final = 1 << 20


class NodePaths(msgspec.Struct, frozen=True):
    """Where the kubelet, the container runtime and the plugin have their files."""

    kubelet: str = "/var/lib/kubelet"
    cdi: str = "/var/run/cdi"
    containerd: tuple[str, ...] = (
        "/etc/containerd/config.toml",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    )
    """Config files of containerd; the first that exists is examined."""


def check_node(paths: NodePaths) -> Iterator[CheckResult]:
    """Yield the results for this machine."""
    if not Path(paths.kubelet).is_dir():
        what = f"this machine is not a node: there is no {paths.kubelet}"
        remedy = "to examine a node, run the check in the container plugin of its pod of the DaemonSet"
        yield note("this machine", what, remedy)
        return
    yield from _check_sockets(Path(paths.kubelet))
    yield from _check_cdi(Path(paths.cdi))
    yield from _check_containerd(paths.containerd)


def _check_sockets(kubelet: Path) -> Iterator[CheckResult]:
    """Report whether the plugin and the kubelet can reach each other."""
    name = "kubelet plugin"
    registration = sorted((kubelet / "plugins_registry").glob(f"{names.DRIVER}*.sock"))
    driver = sorted((kubelet / "plugins" / names.DRIVER).glob("*.sock"))
    device_plugin = sorted((kubelet / "device-plugins").glob("cotenant*.sock"))
    if not registration and not device_plugin:
        remedy = "check that the container plugin runs and mounts these directories, and see its log"
        what = f"no socket of {names.DRIVER} in {kubelet}/plugins_registry or {kubelet}/device-plugins"
        yield bad(name, what, remedy)
    for path in (*registration, *driver, *device_plugin):
        problem = _connect_problem(path)
        if problem:
            yield bad(name, f"{path} does not answer: {problem}", "restart the pod of the DaemonSet on this node")
        else:
            yield good(name, f"{path} answers")


def _connect_problem(path: Path) -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect(str(path))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _check_cdi(directory: Path) -> Iterator[CheckResult]:
    name = "CDI"
    if not directory.is_dir():
        remedy = f"create it, and mount it in the container plugin: mkdir -p {directory}"
        yield bad(name, f"there is no {directory}", remedy)
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield bad(name, f"{directory} cannot be written", "run as root, or mount it writable in the container plugin")
        return
    specs = sorted(directory.glob(f"{names.GROUP}-claim-*.json"))
    damaged = [path for path in specs if not _is_spec(path)]
    for path in damaged:
        remedy = f"delete it, so that the runtime can read the others: rm {path}"
        yield bad(name, f"{path} is not a CDI specification", remedy)
    if not damaged:
        yield good(name, f"{directory} has {counted(len(specs), 'specification')} of claims")


def _is_spec(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            content = msgspec.json.decode(file.read(_SPEC_LIMIT_BYTES))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == names.EXTENDED_RESOURCE and "devices" in content


def _check_containerd(files: tuple[str, ...]) -> Iterator[CheckResult]:
    name = "container runtime"
    path = next((Path(file) for file in files if Path(file).is_file()), None)
    if path is None:
        remedy = "nothing, if the runtime is CRI-O, or containerd 2.0 or newer with its defaults"
        yield note(name, "no config file of containerd was found", remedy)
        return
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield bad(name, f"{path} cannot be read: {error}", "repair it; containerd does not start with it")
        return
    plugins = config.get("plugins", {})
    old = _setting(plugins, "io.containerd.grpc.v1.cri")
    new = _setting(plugins, "io.containerd.cri.v1.runtime")
    enabled = new if new is not None else old
    if enabled is False or (enabled is None and config.get("version", 1) < 3):
        section = 'plugins."io.containerd.grpc.v1.cri"' if new is None else 'plugins."io.containerd.cri.v1.runtime"'
        remedy = f"write enable_cdi = true in [{section}] and restart containerd"
        if enabled is None:
            yield note(name, f"{path} does not set enable_cdi, which is off before containerd 2.0", remedy)
        else:
            yield bad(name, f"{path} has enable_cdi = false, so that claims have no effect", remedy)
    else:
        yield good(name, f"{path} leaves CDI on")


def _setting(plugins: Any, plugin: str) -> bool | None:
    """Return enable_cdi of a plugin of containerd; None if it is not set."""
    section = plugins.get(plugin, {}) if isinstance(plugins, dict) else {}
    value = section.get("enable_cdi") if isinstance(section, dict) else None
    return value if isinstance(value, bool) else None
