"""The control plane of a test cluster: etcd, kube-apiserver, and on request kube-scheduler and controller manager."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.errors import SetupError
from cotenant_lab.kubernetes.api import ApiClient
from cotenant_lab.kubernetes.certificates import Authority, Certificate
from cotenant_lab.kubernetes.component import Component, wait_until
from cotenant_lab.kubernetes.namespaces import Addresses, NamespaceSet

SCHEDULER: Final = "kube-scheduler"
CONTROLLER_MANAGER: Final = "kube-controller-manager"

FEATURE_GATES: Final[Mapping[str, bool]] = {"DRAConsumableCapacity": True, "DRADeviceTaints": True}
"""Features that cotenant's DRA driver uses and that are off by default in the version that the tests build."""

_READY_S: Final = 180
_LOOPBACK: Final = "127.0.0.1"
_ISSUER: Final = "https://kubernetes.default.svc"


class _Place(NamedTuple):
    """Where the control plane listens: in namespaces of its own, or on free ports of this machine."""

    prefix: list[str]
    forks: bool
    bind: str
    host: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    services: str
    api_service: str


class ControlPlane:
    """Starts and stops the processes of a control plane below one directory."""

    def __init__(
        self,
        directory: Path,
        programs: Mapping[str, Path],
        *,
        network: tuple[NamespaceSet, Addresses] | None = None,
        components: Sequence[str] = (),
        feature_gates: Mapping[str, bool] = FEATURE_GATES,
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        """Write certificates and kubeconfigs; without `network` there are no nodes, and no root is needed."""
        self._directory = directory
        self._programs = programs
        self._place = _in_namespaces(*network) if network else _on_this_machine()
        self._gates = ",".join(f"{name}={str(on).lower()}" for name, on in feature_gates.items())
        self.server = f"https://{self._place.host}:{self._place.port}"
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True)
        self.authority = Authority(directory / "pki")
        self._service_accounts = self.authority.signing_key("service-accounts")
        self.kubeconfig = self.kubeconfig_for("admin", "kubernetes-admin", ["system:masters"])
        self.api = ApiClient(self.kubeconfig)
        self.etcd = self._component("etcd", self._etcd_flags())
        self.apiserver = self._component("kube-apiserver", [*self._apiserver_flags(), *apiserver_flags])
        flags = {SCHEDULER: self._scheduler_flags, CONTROLLER_MANAGER: self._controller_manager_flags}
        self.others = {name: self._component(name, flags[name]()) for name in components}

    def kubeconfig_for(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for a user with a certificate, and return its path."""
        certificate = self.authority.issue(f"user-{name}", user, groups)
        return self.authority.write_kubeconfig(self._directory / f"{name}.kubeconfig", self.server, certificate)

    def start(self) -> None:
        """Start all processes, and return when the API server is ready."""
        self.etcd.start()
        self.apiserver.start()
        self.wait_ready()
        for component in self.others.values():
            component.start()

    def wait_ready(self) -> None:
        """Wait until the API server answers that it is ready."""
        wait_until("the API server is ready", self.api.is_ready, _READY_S, [self.etcd, self.apiserver])

    def kill(self) -> None:
        """Kill all processes; nothing of their state is needed later."""
        for component in self.components():
            component.kill()

    def components(self) -> list[Component]:
        """Return all processes, etcd last."""
        return [*self.others.values(), self.apiserver, self.etcd]

    def _component(self, program: str, flags: Sequence[str]) -> Component:
        command = [str(self._programs[program]), *flags]
        log = self.logs / f"{program}.log"
        return Component(program, command, log, prefix=self._place.prefix, forks=self._place.forks)

    def _etcd_flags(self) -> list[str]:
        client, peer = (f"http://{_LOOPBACK}:{port}" for port in (self._place.etcd_port, self._place.etcd_peer_port))
        return [
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data need not survive this machine
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        ]

    def _apiserver_flags(self) -> list[str]:
        place, authority = self._place, self.authority
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            place.host,
            place.api_service,
        ]
        serving = authority.issue("apiserver", "kube-apiserver", hosts=[*names, _LOOPBACK])
        kubelets = authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", ["system:masters"])
        flags = [
            f"--etcd-servers=http://{_LOOPBACK}:{place.etcd_port}",
            f"--bind-address={place.bind}",
            f"--secure-port={place.port}",
            *_certificate_flags("tls-cert-file", "tls-private-key-file", serving),
            *_certificate_flags("kubelet-client-certificate", "kubelet-client-key", kubelets),
            f"--kubelet-certificate-authority={authority.files.certificate}",
            f"--client-ca-file={authority.files.certificate}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={self._service_accounts.certificate}",
            f"--service-account-signing-key-file={self._service_accounts.key}",
            f"--service-cluster-ip-range={place.services}",
            "--kubelet-preferred-address-types=InternalIP",  # there is no DNS for the names of nodes
            "--allow-privileged=true",
            "--enable-aggregator-routing=true",  # webhooks are reached at the pod's address: there is no kube-proxy
            "--profiling=false",
            *self._gate_flags(),
        ]
        if place.host == _LOOPBACK:  # a loopback address may not be an endpoint of the Service `kubernetes`
            return [*flags, "--endpoint-reconciler-type=none"]
        return [*flags, f"--advertise-address={place.host}"]

    def _scheduler_flags(self) -> list[str]:
        kubeconfig = self.kubeconfig_for("scheduler", f"system:{SCHEDULER}")
        return [*_connection_flags(kubeconfig), *self._gate_flags()]

    def _controller_manager_flags(self) -> list[str]:
        kubeconfig = self.kubeconfig_for("controller-manager", f"system:{CONTROLLER_MANAGER}")
        files = self.authority.files
        return [
            *_connection_flags(kubeconfig),
            "--use-service-account-credentials=true",
            f"--root-ca-file={files.certificate}",
            f"--service-account-private-key-file={self._service_accounts.key}",
            *_certificate_flags("cluster-signing-cert-file", "cluster-signing-key-file", files),
            # Nodes without a kubelet are objects that a test writes once: they stay Ready.
            *(["--node-monitor-grace-period=24h"] if self._place.host == _LOOPBACK else []),
            *self._gate_flags(),
        ]

    def _gate_flags(self) -> list[str]:
        return [f"--feature-gates={self._gates}"] if self._gates else []


def _in_namespaces(inside: NamespaceSet, addresses: Addresses) -> _Place:
    return _Place(
        prefix=inside.enter(),
        forks=True,
        bind="0.0.0.0",  # noqa: S104 - of a network namespace that only this machine reaches
        host=addresses.control_plane,
        port=443,  # also the port of the Service `kubernetes`, whose address this namespace has
        etcd_port=2379,
        etcd_peer_port=2380,
        services=addresses.services,
        api_service=addresses.api_service,
    )


def _on_this_machine() -> _Place:
    if shutil.which("setpriv") is None:
        raise SetupError("the program 'setpriv' is not installed: install util-linux")
    port, etcd_port, etcd_peer_port = _free_ports(3)
    return _Place(
        prefix=["setpriv", "--pdeathsig", "KILL"],  # the processes end with this one, also when it is killed
        forks=False,
        bind=_LOOPBACK,
        host=_LOOPBACK,
        port=port,
        etcd_port=etcd_port,
        etcd_peer_port=etcd_peer_port,
        services="10.0.0.0/24",
        api_service="10.0.0.1",
    )


def _free_ports(count: int) -> tuple[int, ...]:
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(count)]
    ports = tuple(int(listening.getsockname()[1]) for listening in sockets)
    for listening in sockets:
        listening.close()
    return ports


def _connection_flags(kubeconfig: Path) -> list[str]:
    names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [
        *(f"--{name}={kubeconfig}" for name in names),
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    ]


def _certificate_flags(certificate: str, key: str, files: Certificate) -> list[str]:
    return [f"--{certificate}={files.certificate}", f"--{key}={files.key}"]
