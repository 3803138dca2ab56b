"""A node of a test cluster: namespaces that look like a machine, with containerd and kubelet inside.

In the node's mount namespace the usual paths exist, and each is a folder below the node's directory on this machine:

    /var/lib/kubelet     DIRECTORY/kubelet      (device plugins register at its fixed path below this one)
    /var/run/cdi         DIRECTORY/cdi
    /run/cotenant        DIRECTORY/run-cotenant
    /var/lib/cotenant    DIRECTORY/var-lib-cotenant
    /usr/local/cotenant  DIRECTORY/usr-local-cotenant

What else the node writes below /var/lib, /var/log, /run, /opt and /usr/local goes to an overlay of the node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes import cgroups
from cotenant_lab.kubernetes.component import Component, wait_until
from cotenant_lab.kubernetes.control_plane import ControlPlane
from cotenant_lab.kubernetes.images import PAUSE_IMAGE
from cotenant_lab.kubernetes.namespaces import Addresses, NamespaceSet, connect_node

_OVERLAYS: Final = ("var/lib", "var/log", "run", "opt", "usr/local")
_FOLDERS: Final = {
    "var/lib/kubelet": "kubelet",
    "run/cdi": "cdi",
    "run/cotenant": "run-cotenant",
    "var/lib/cotenant": "var-lib-cotenant",
    "usr/local/cotenant": "usr-local-cotenant",
}
_READY_S: Final = 180
_POD_WEIGHT: Final = 8
"""Pods outweigh the control plane, which would run on other machines."""


class NodeSettings(NamedTuple):
    """What all nodes of a cluster have in common."""

    control_plane: ControlPlane
    control_namespaces: NamespaceSet
    addresses: Addresses
    programs: Mapping[str, Path]
    pause_program: Path
    cgroup: str
    feature_gates: Mapping[str, bool]
    kubelet_config: Mapping[str, object]


class ClusterNode:
    """One kubelet with its containerd, in namespaces of its own."""

    def __init__(self, settings: NodeSettings, index: int, directory: Path) -> None:
        """Create the namespaces, connect them, and write the configuration; `start` starts the processes."""
        self.name = f"node-{index}"
        self.index = index
        self.directory = directory
        self.address = settings.addresses.node(index)
        self.cgroup = f"{settings.cgroup}/{self.name}"
        self._settings = settings
        self._components: list[Component] = []
        for folder in (*_FOLDERS.values(), "cni", "containerd", "containerd-state", "volume-plugins"):
            (directory / folder).mkdir(parents=True)
        cgroups.create(self.cgroup)
        for group in (settings.cgroup, self.cgroup):
            cgroups.set_weight(group, _POD_WEIGHT)
        self.namespaces = NamespaceSet(self.name, directory, settings.pause_program, _mount_lines(directory))
        try:
            connect_node(settings.control_namespaces, self.namespaces, settings.addresses, index)
            self._write_configuration()
        except BaseException:
            self.namespaces.close()
            raise
        self.containerd = self._component("containerd", ["--config", str(directory / "containerd.toml")])
        self.kubelet = self._component("kubelet", self._kubelet_flags())

    @property
    def kubelet_root(self) -> Path:
        """Return the path on this machine of the node's /var/lib/kubelet."""
        return self.directory / "kubelet"

    @property
    def cdi(self) -> Path:
        """Return the path on this machine of the node's /var/run/cdi."""
        return self.directory / "cdi"

    def start(self, archives: Sequence[Path]) -> None:
        """Start containerd, import the images, and start the kubelet."""
        self.containerd.start()
        socket = self.directory / "containerd.sock"
        wait_until(f"containerd of {self.name} listens", lambda: self._answers(socket), 60, [self.containerd])
        for archive in archives:
            self.import_image(archive)
        self.kubelet.start()

    def wait_ready(self) -> None:
        """Wait until the node's condition Ready is true."""
        what = f"{self.name} is Ready"
        wait_until(what, self.is_ready, _READY_S, [self.kubelet, self.containerd], poll_s=0.3)

    def is_ready(self) -> bool:
        """Return whether the API says that this node is Ready."""
        nodes = self._settings.control_plane.api.get("/api/v1/nodes")["items"]
        conditions = [
            condition
            for node in nodes
            if node["metadata"]["name"] == self.name
            for condition in node["status"].get("conditions", ())
        ]
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def import_image(self, archive: Path) -> None:
        """Make an image available to the node's pods."""
        self.ctr("images", "import", "--local", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run containerd's client in the namespace of Kubernetes."""
        address = self.directory / "containerd.sock"
        return self.run([str(self._settings.programs["ctr"]), "-a", str(address), "-n", "k8s.io", *arguments])

    def run(self, command: Sequence[str], *, timeout_s: float = 120) -> str:
        """Run a command in the node's namespaces and return what it printed."""
        return self.namespaces.run(command, timeout_s=timeout_s)

    def component(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Component:
        """Describe a process of this node, such as a daemon or a plugin; the caller starts and stops it."""
        log = self._settings.control_plane.logs / f"{self.name}-{name}.log"
        prefix = self.namespaces.enter()
        made = Component(f"{name} of {self.name}", command, log, prefix=prefix, forks=True, environment=environment)
        self._components.append(made)
        return made

    def close(self) -> None:
        """Kill every process of the node and remove its cgroups."""
        self.namespaces.close()
        for component in self._components:
            component.reap()
        cgroups.remove(self.cgroup)

    def _answers(self, socket: Path) -> bool:
        if not socket.exists():
            return False
        try:
            self.ctr("version")
        except RunFailedError:
            return False
        return True

    def _component(self, program: str, flags: Sequence[str]) -> Component:
        return self.component(program, [str(self._settings.programs[program]), *flags])

    def _kubelet_flags(self) -> list[str]:
        return [
            f"--config={self.directory / 'kubelet.json'}",
            f"--kubeconfig={self.directory / 'kubelet.kubeconfig'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--root-dir=/var/lib/kubelet",
        ]

    def _write_configuration(self) -> None:
        settings, directory = self._settings, self.directory
        authority = settings.control_plane.authority
        user = authority.issue(f"{self.name}-client", f"system:node:{self.name}", ["system:nodes"])
        authority.write_kubeconfig(directory / "kubelet.kubeconfig", settings.control_plane.server, user)
        serving = authority.issue(f"{self.name}-server", self.name, hosts=[self.name, self.address])
        (directory / "resolv.conf").write_text("")
        config: dict[str, object] = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.files.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": [],  # the machine is shared with the tests
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,  # a lower value needs CAP_SYS_RESOURCE, which some virtual machines withhold
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "makeIPTablesUtilChains": False,
            "resolvConf": str(directory / "resolv.conf"),
            "volumePluginDir": str(directory / "volume-plugins"),
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
            "featureGates": dict(settings.feature_gates),
            **settings.kubelet_config,
        }
        (directory / "kubelet.json").write_text(json.dumps(config, indent=1))
        (directory / "containerd.toml").write_text(self._containerd_config())
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(directory / "cni-addresses"),
                        "ranges": [[{"subnet": settings.addresses.pods(self.index)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (directory / "cni" / "10-pods.conflist").write_text(json.dumps(network))

    def _containerd_config(self) -> str:
        programs, directory = self._settings.programs, self.directory
        # Some virtual machines have neither systemd nor CAP_SYS_RESOURCE; CDI is on.
        return f"""version = 3
root = '{directory}/containerd'
state = '{directory}/containerd-state'
oom_score = 0
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.tracing.processor.v1.otlp']

[grpc]
address = '{directory}/containerd.sock'

[plugins.'io.containerd.cri.v1.images']
snapshotter = 'overlayfs'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE_IMAGE}'

[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{programs["bridge"].parent}']
conf_dir = '{directory}/cni'
use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
runtime_path = '{programs["containerd-shim-runc-v2"]}'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{programs["runc"]}'
SystemdCgroup = false
"""


def _mount_lines(directory: Path) -> list[str]:
    """Return the shell lines that give the node file systems of its own at the usual paths."""
    lines = []
    for name in _OVERLAYS:
        folder = directory / "overlay" / name.replace("/", "-")
        options = f"lowerdir=/{name},upperdir={folder}/upper,workdir={folder}/work"
        lines += [f"mkdir -p {folder}/upper {folder}/work", f"mount -t overlay -o {options} overlay /{name}"]
    for inside, folder_name in _FOLDERS.items():
        lines += [f"mkdir -p /{inside}", f"mount --bind {directory / folder_name} /{inside}"]
    return [*lines, "mount --make-rshared /"]
