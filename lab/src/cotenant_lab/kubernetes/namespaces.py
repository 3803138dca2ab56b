"""Linux namespaces of a test cluster: one set for the control plane and one for each node, connected by a bridge.

Every set has a first process that this process's death kills, and with it all processes, interfaces and mounts inside.
The addresses of cluster number N are 10.N.0.0/16:

    10.N.I.0/24      pods of node I
    10.N.128.0/18    Services; 10.N.128.1 is the API server itself, so that pods reach it without kube-proxy
    10.N.255.1       control plane; the bridge
    10.N.255.10+I    node I
    10.N.255.254     this machine, reachable from the API server, nodes and pods
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import SetupError, WorldError
from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.component import Component, wait_until

LINK_PREFIX: Final = "ctk"
"""The interface of cluster N on this machine is called ctkN."""

_NUMBERS: Final = range(64, 127)
_TOOLS: Final = ("ip", "unshare", "nsenter", "setpriv", "mount")


def require_root() -> None:
    """Raise an error if this process may not create namespaces, or lacks the programs for it."""
    if os.geteuid() != 0:
        raise SetupError("a test cluster with nodes needs root: it creates namespaces, cgroups and mounts")
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            raise SetupError(f"the program {tool!r} is not installed: install util-linux and iproute2")


class Link(NamedTuple):
    """A network interface of this machine; its number tells it from a later one of the same name."""

    name: str
    number: int

    def exists(self) -> bool:
        """Return whether the machine still has this interface."""
        return _number_of(self.name) == self.number

    def remove(self) -> None:
        """Remove the interface; the kernel would do so too, but some seconds after the namespace if it removes many."""
        if self.exists():
            subprocess.run(["ip", "link", "delete", self.name], capture_output=True, check=False)


class Addresses:
    """The addresses of one cluster by its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.network = f"10.{number}.0.0/16"
        self.services = f"10.{number}.128.0/18"
        self.api_service = f"10.{number}.128.1"
        self.control_plane = f"10.{number}.255.1"
        self.machine = f"10.{number}.255.254"

    def node(self, index: int) -> str:
        return f"10.{self.number}.255.{10 + index}"

    def pods(self, index: int) -> str:
        return f"10.{self.number}.{index}.0/24"


class NamespaceSet:
    """The pid, mount, network and host name namespaces of one machine, kept by a small first process."""

    def __init__(self, name: str, directory: Path, pause_program: Path, setup: Sequence[str] = ()) -> None:
        """Create the namespaces and run the setup commands (shell lines) in them."""
        ready = directory / "namespaces-ready"
        lines = ["set -e", f"hostname {name}", "ip link set lo up", "echo 1 > /proc/sys/net/ipv4/ip_forward", *setup]
        script = "\n".join([*lines, f": > {ready}", f"exec {pause_program}"])
        # The outer process dies with its parent (setpriv), the first process inside with the outer one (--kill-child).
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--uts", "--fork"]
        command += ["--kill-child", "--mount-proc", "sh", "-c", script]
        # The lifetime of the namespaces is that of the holder.
        self._holder = Component(f"namespaces of {name}", command, directory / "namespaces.log")
        self._holder.start()
        try:
            wait_until(f"the namespaces of {name} exist", ready.exists, 30, [self._holder])
            self.pid = self._holder.child_pid()
        except BaseException:
            self.close()
            raise

    def enter(self, *, net_only: bool = False) -> list[str]:
        """Return the words before a command that run it inside; with all namespaces it is a child of nsenter."""
        if net_only:
            return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]
        kinds = ["mnt", "net", "pid", "uts"]
        options = {"mnt": "mount"}
        return ["nsenter", *(f"--{options.get(kind, kind)}=/proc/{self.pid}/ns/{kind}" for kind in kinds), "--"]

    def run(self, command: Sequence[str], *, timeout_s: float = 120) -> str:
        """Run a command inside to its end and return what it printed."""
        done = subprocess.run([*self.enter(), *command], capture_output=True, text=True, check=False, timeout=timeout_s)
        if done.returncode:
            raise RunFailedError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def close(self) -> None:
        """Kill every process inside; the kernel then removes the interfaces and mounts."""
        self._holder.kill()


def connect_control_plane(inside: NamespaceSet) -> tuple[Addresses, Link]:
    """Create the bridge and connect it with this machine, as the first free cluster number."""
    for number in _NUMBERS:
        addresses = Addresses(number)
        if _is_routed(addresses.network):
            continue
        link = f"{LINK_PREFIX}{number}"
        if _ip("link", "add", link, "type", "veth", "peer", "name", "machine0", "netns", str(inside.pid)):
            break
    else:
        raise WorldError(f"no network of 10.{_NUMBERS[0]}.0.0/16 to 10.{_NUMBERS[-1]}.0.0/16 is free on this machine")
    ip = ["ip"]
    for words in (
        "link add br0 type bridge",
        "link set machine0 master br0",
        "link set machine0 up",
        f"address add {addresses.control_plane}/24 dev br0",
        f"address add {addresses.api_service}/32 dev lo",
        "link set br0 up",
    ):
        inside.run([*ip, *words.split()])
    for words in (
        f"address add {addresses.machine}/24 dev {link}",
        f"link set {link} up",
        f"route add {addresses.network} via {addresses.control_plane} dev {link}",
    ):
        if not _ip(*words.split()):
            raise WorldError(f"ip {words} failed on this machine")
    return addresses, Link(link, _number_of(link))


def connect_node(control_plane: NamespaceSet, node: NamespaceSet, addresses: Addresses, index: int) -> None:
    """Connect a node with the bridge of the control plane and route its pods."""
    port = f"node{index}"
    control_plane.run(["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "address", _mac(index)])
    _move(control_plane, node, "eth0")
    for words in (f"link set {port} master br0", f"link set {port} up"):
        control_plane.run(["ip", *words.split()])
    for words in (
        f"address add {addresses.node(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {addresses.control_plane}",
    ):
        node.run(["ip", *words.split()])
    control_plane.run(["ip", "route", "add", addresses.pods(index), "via", addresses.node(index)])


def _move(source: NamespaceSet, target: NamespaceSet, link: str) -> None:
    """Move an interface; only the network namespace is entered, because pids below are those of this machine."""
    command = [*source.enter(net_only=True), "ip", "link", "set", link, "netns", str(target.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailedError(f"cannot move {link} to its node: {done.stderr.strip()}")


def _number_of(link: str) -> int:
    try:
        return int(Path(f"/sys/class/net/{link}/ifindex").read_text())
    except OSError:
        return 0


def _mac(index: int) -> str:
    return f"02:00:00:00:01:{index:02x}"


def _is_routed(network: str) -> bool:
    """Return whether a route of this machine overlaps a network."""
    wanted = ipaddress.ip_network(network)
    routes = json.loads(
        subprocess.run(["ip", "-j", "route"], capture_output=True, text=True, check=True).stdout or "[]"
    )
    destinations = [str(route.get("dst", "default")) for route in routes]
    return any(wanted.overlaps(ipaddress.ip_network(text, strict=False)) for text in destinations if text != "default")


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0
