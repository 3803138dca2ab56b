"""Bench `kubernetes`: the placement controller with a real API server, and nodes and pods that the bench writes.

Every size has its own API server. Of the eight GPUs of each node, three have an offer, so that some of the gated pods
wait. The bench ends released pods and reports for the nodes, as kubelets would, until every pod was released. Half way,
the controller is killed and started again.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import random
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import MERGE_PATCH, ApiClient, ApiRequest, resource_path
from cotenant.cluster.kubernetes.api_config import load_api_config
from cotenant.cluster.kubernetes.controller.main import ControllerOptions, ControllerProcess
from cotenant.cluster.kubernetes.controller.objects import POD_SELECTOR, Pod
from cotenant.cluster.kubernetes.gpu_node import GpuNodeStatus, GpuStatus, OnlineTenant, Use, gpu_node_path
from cotenant.runner.clock import LiveClock, monotonic_ns, pause, rfc3339, unix_ns
from cotenant.runner.live_loop import READ
from cotenant.units.histogram import Histogram
from cotenant.units.instant import SECOND_NS
from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.cluster import TestControlPlane

PODS_A_NODE: Final = 5
GPUS: Final = 8
OFFERED: Final = 3
"""GPUs of a node on which offline work may run."""
LIMIT_ROUND_MS: Final = 1000.0
LIMIT_RSS_MIB: Final = 1024.0
NAMESPACE: Final = "bench"
_CRD: Final = Path(__file__).resolve().parents[4] / "deploy" / "chart" / "crds" / "gpunodes.yaml"
_GIB: Final = 1 << 30
_HEARTBEAT_S: Final = 20.0
_TIMEOUT_S: Final = 1800.0
_WRITERS: Final = 8
_GANG_EVERY: Final = 50
"""One Job in this many is a gang."""
_PODS_A_JOB: Final = 10
_USES: Final = tuple(
    Use(
        duty_ppm=duty,
        widths=((width, 1_000_000),),
        kernel_ns=kernel_ns,
        round_ns=20_000_000,
        round_device_ns=10_000_000,
    )
    for duty, width, kernel_ns in (
        (300_000, 250_000, 50_000),
        (600_000, 500_000, 200_000),
        (900_000, 900_000, 1_000_000),
    )
)


class KubernetesSize(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one size."""

    nodes: int
    pods: int
    rounds: int
    round_p50_ms: float
    round_p99_ms: float
    round_max_ms: float
    pods_released_per_s: float
    api_requests_per_s: float
    """Requests of the controller, without lists and watches, while it releases pods."""
    controller_rss_mib: float
    """Largest resident memory of the controller."""
    controller_cpu_s: float
    restart_to_first_round_s: float
    """From the start of the process after a SIGKILL, with all objects listed."""
    seconds: float
    """From the first to the last released pod, including the restart."""


class KubernetesBenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results; those of the largest size come first."""

    bench: str
    nodes: int
    pods: int
    round_p99_ms: float
    pods_released_per_s: float
    api_requests_per_s: float
    controller_rss_mib: float
    restart_to_first_round_s: float
    growth: dict[str, float]
    """Exponent of each value over the number of nodes, from the smallest to the largest size: 1 is proportional."""
    sizes: list[KubernetesSize]
    met: dict[str, bool]
    """Targets of the full bench; empty in a quick run."""


class ControllerStats(NamedTuple):
    """What the controller process reports."""

    round_ns: Histogram
    requests: int
    peak_rss_bytes: int
    cpu_s: float
    first_round_s: float
    """From the start of the process to the end of the first round; 0: there was none yet."""


def bench_kubernetes(report: Callable[[str], None], *, quick: bool, seed: int = 0) -> KubernetesBenchReport:
    """Measure all sizes, one after the other."""
    sizes = [measure(nodes, report, seed) for nodes in ((5, 10) if quick else (100, 1000))]
    smallest, largest = sizes[0], sizes[-1]
    measured = (
        "round_p99_ms",
        "pods_released_per_s",
        "api_requests_per_s",
        "controller_rss_mib",
        "restart_to_first_round_s",
    )
    ratio = math.log(largest.nodes / smallest.nodes)
    growth = {
        name: math.log(max(1e-9, getattr(largest, name)) / max(1e-9, getattr(smallest, name))) / ratio
        for name in measured
    }
    met = {
        "round_p99_ms": largest.round_p99_ms <= LIMIT_ROUND_MS,
        "controller_rss_mib": largest.controller_rss_mib <= LIMIT_RSS_MIB,
    }
    return KubernetesBenchReport(
        bench="kubernetes",
        nodes=largest.nodes,
        pods=largest.pods,
        round_p99_ms=largest.round_p99_ms,
        pods_released_per_s=largest.pods_released_per_s,
        api_requests_per_s=largest.api_requests_per_s,
        controller_rss_mib=largest.controller_rss_mib,
        restart_to_first_round_s=largest.restart_to_first_round_s,
        growth=growth,
        sizes=sizes,
        met={} if quick else met,
    )


def measure(nodes: int, report: Callable[[str], None], seed: int) -> KubernetesSize:
    """Measure one size with an API server of its own."""
    pods = nodes * PODS_A_NODE
    with TestControlPlane(report=report) as plane:
        plane.kubectl("create", "-f", str(_CRD))
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": NAMESPACE},
        }
        plane.apply(account)
        objects = BenchObjects(plane.kubeconfig, nodes, seed)
        report(f"writing {nodes:,} nodes with {GPUS} GPUs each and {pods:,} gated pods")
        objects.write(pods)
        report("running the controller until every pod is released, with one restart")
        with objects.kubelets():
            return _run(plane, objects, pods)


def _run(plane: TestControlPlane, objects: BenchObjects, pods: int) -> KubernetesSize:
    first = ControllerChild(plane.kubeconfig)
    objects.wait_released(pods // 2, first)
    before = first.kill()
    second = ControllerChild(plane.kubeconfig)
    try:
        objects.wait_released(pods, second)
        seconds = (monotonic_ns() - objects.first_released_ns) / SECOND_NS
        after = second.stats()
    finally:
        second.kill()
    rounds = before.round_ns.merged(after.round_ns)
    return KubernetesSize(
        nodes=objects.nodes,
        pods=pods,
        rounds=rounds.count,
        round_p50_ms=rounds.quantile(0.5) / 1e6,
        round_p99_ms=rounds.quantile(0.99) / 1e6,
        round_max_ms=rounds.highest / 1e6,
        pods_released_per_s=pods / seconds,
        api_requests_per_s=(before.requests + after.requests) / seconds,
        controller_rss_mib=max(before.peak_rss_bytes, after.peak_rss_bytes) / (1 << 20),
        controller_cpu_s=before.cpu_s + after.cpu_s,
        restart_to_first_round_s=after.first_round_s,
        seconds=seconds,
    )


class BenchObjects:
    """Writes nodes and pods, and plays the kubelets."""

    def __init__(self, kubeconfig: Path, nodes: int, seed: int) -> None:
        self._client = ApiClient(load_api_config(str(kubeconfig)))
        self._rng = random.Random(seed)
        self.nodes = nodes
        self._released: set[str] = set()
        self.first_released_ns = 0
        self._is_over = threading.Event()
        self._problem = ""

    def write(self, pods: int) -> None:
        """Create all objects."""
        requests = [self._pod(number) for number in range(pods)]
        statuses = [(name, self._status(name)) for name in self._names()]
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(self._write_node, self._names()):
                pass
            for _ in pool.map(lambda each: self._write_gpu_node(*each), statuses):
                pass
            for _ in pool.map(self._client.call, requests):
                pass

    def _names(self) -> list[str]:
        return [f"node-{number:05d}" for number in range(self.nodes)]

    def _write_node(self, name: str) -> None:
        """Create a Node. A new one is tainted as not ready, and here is no controller manager that removes that."""
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self._client.create(resource_path("v1", "nodes"), {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        self._client.patch(resource_path("v1", "nodes", "", name), {"spec": {"taints": None}})

    def _write_gpu_node(self, name: str, status: GpuNodeStatus) -> None:
        self._client.create(
            gpu_node_path(), {"apiVersion": "cotenant.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}
        )
        self._client.patch(gpu_node_path(name, "status"), {"status": status})

    def _status(self, name: str) -> GpuNodeStatus:
        gpus = []
        for index in range(GPUS):
            use = msgspec.structs.replace(self._rng.choice(_USES), active_ppm=self._rng.randrange(50_000, 950_000))
            online = [OnlineTenant(f"service-{self._rng.randrange(50)}", "", 50_000_000, use)]
            free_bytes = self._rng.choice((8, 12, 16, 20)) * _GIB
            offer_ppm = self._rng.randrange(300_000, 900_000) if index < OFFERED else 0
            uuid = f"GPU-{name}-{index}"
            gpus.append(GpuStatus(uuid, index, "V100", 32 * _GIB, free_bytes, offer_ppm, "healthy", online))
        return GpuNodeStatus(1, rfc3339(unix_ns()), "bench", gpus, [])

    def _pod(self, number: int) -> ApiRequest:
        job = number // _PODS_A_JOB
        annotations = {names.ANNOTATION_KIND: "offline", names.ANNOTATION_MEMORY: f"{2 + job % 6}GiB"}
        if job % _GANG_EVERY == 1:
            annotations |= {names.ANNOTATION_GANG: f"gang-{job}", names.ANNOTATION_GANG_SIZE: str(_PODS_A_JOB)}
        name = f"job-{job:05d}-{number % _PODS_A_JOB}"
        claim = names.claim_name(name, f"{number:010x}")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{job:05d}", "uid": f"{job}", "controller": True}
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": names.POD_CLAIM}]}}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {names.LABEL_CLAIM: claim},
                "annotations": annotations,
                "ownerReferences": [owner],
            },
            "spec": {
                "schedulingGates": [{"name": names.GATE}],
                "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": claim}],
                "containers": [container],
            },
        }
        return ApiRequest("POST", resource_path("v1", "pods", NAMESPACE), msgspec.json.encode(body))

    # -- kubelets ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def kubelets(self) -> Iterator[None]:
        """End released pods, and repeat the reports of the nodes."""
        threads = [threading.Thread(target=target, daemon=True) for target in (self._end_pods, self._heartbeat)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()

    def wait_released(self, count: int, controller: ControllerChild) -> None:
        """Wait until so many pods were released."""
        deadline_ns = monotonic_ns() + int(_TIMEOUT_S * SECOND_NS)
        while len(self._released) < count:
            if not controller.is_alive:
                raise RunFailedError("the controller process ended early; see its message")
            if self._problem or monotonic_ns() > deadline_ns:
                why = self._problem or f"they were not within {_TIMEOUT_S:.0f} s"
                raise RunFailedError(f"{len(self._released)} of {count} pods were released: {why}")
            pause(0.05)

    def _end_pods(self) -> None:
        client = ApiClient(self._client.config)
        decoder = msgspec.json.Decoder(Pod)
        path = resource_path("v1", "pods", NAMESPACE)
        try:
            version = client.list(path, Pod, **POD_SELECTOR).resource_version
            with ThreadPoolExecutor(2) as pool:
                while not self._is_over.is_set():
                    for event in client.watch(path, version, **POD_SELECTOR):
                        if event.type == "BOOKMARK":
                            continue
                        pod = decoder.decode(event.object)
                        version = pod.metadata.resource_version
                        if event.type == "MODIFIED" and not pod.is_gated and pod.uid not in self._released:
                            self.first_released_ns = self.first_released_ns or monotonic_ns()
                            self._released.add(pod.uid)
                            pool.submit(self._end_pod, pod)
        except Exception as error:  # noqa: BLE001  reported by `wait_released`
            if not self._is_over.is_set():
                self._problem = str(error)

    def _end_pod(self, pod: Pod) -> None:
        path = resource_path("v1", "pods", NAMESPACE, pod.metadata.name, "status")
        body = msgspec.json.encode({"status": {"phase": "Succeeded"}})
        self._client.send(ApiRequest("PATCH", path, body, MERGE_PATCH))

    def _heartbeat(self) -> None:
        client = ApiClient(self._client.config)
        step_s = _HEARTBEAT_S / self.nodes
        while not self._is_over.is_set():
            for name in self._names():
                if self._is_over.wait(step_s):
                    return
                body = msgspec.json.encode({"status": {"observedAt": rfc3339(unix_ns())}})
                client.send(ApiRequest("PATCH", gpu_node_path(name, "status"), body, MERGE_PATCH))


class ControllerChild:
    """A controller in a process of its own, which reports its measurements over a pipe."""

    def __init__(self, kubeconfig: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_child, args=(theirs, str(kubeconfig), monotonic_ns()), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def stats(self) -> ControllerStats:
        """Return the measurements so far."""
        try:
            self._pipe.send("stats")
            return ControllerStats(*self._pipe.recv())
        except (EOFError, OSError):
            raise RunFailedError("the controller process ended early; see its message") from None

    def kill(self) -> ControllerStats:
        """Kill the process by SIGKILL, and return what it measured."""
        stats = self.stats()
        self._process.kill()
        self._process.join()
        return stats


def _child(pipe: Connection, kubeconfig: str, started_ns: int) -> None:
    options = ControllerOptions(
        namespace=NAMESPACE,
        round_ns=SECOND_NS,
        requests_per_second=1000,
        request_burst=1000,
        reports_per_second=10,
        workers=8,
        identity="bench",
    )
    clock = LiveClock(unix_ns() - monotonic_ns())
    with contextlib.ExitStack() as opened:
        process = ControllerProcess(options, load_api_config(kubeconfig), clock, lambda _: None, opened)
        controller = process.controller
        started = clock.now() - (monotonic_ns() - started_ns)

        def answer(mask: int) -> None:
            del mask
            pipe.recv()
            used = resource.getrusage(resource.RUSAGE_SELF)
            first_round = controller.first_round or started
            pipe.send(
                tuple(
                    ControllerStats(
                        controller.round_ns.histogram(),
                        controller.dispatcher.sent,
                        used.ru_maxrss * 1024,
                        used.ru_utime + used.ru_stime,
                        (first_round - started) / SECOND_NS,
                    )
                )
            )

        process.loop.watch(pipe.fileno(), READ, answer)
        process.run()


def show_kubernetes_bench(console: Console, report: KubernetesBenchReport) -> None:
    """Print a row for each size, then growth and targets."""
    columns = (
        "NODES",
        "PODS",
        "ROUNDS",
        "ROUND P50",
        "P99",
        "MAX",
        "RELEASED",
        "REQUESTS",
        "RSS",
        "CPU",
        "RESTART",
        "SECONDS",
    )
    rows = [
        (
            f"{size.nodes:,}",
            f"{size.pods:,}",
            f"{size.rounds}",
            f"{size.round_p50_ms:.0f} ms",
            f"{size.round_p99_ms:.0f} ms",
            f"{size.round_max_ms:.0f} ms",
            f"{size.pods_released_per_s:.0f}/s",
            f"{size.api_requests_per_s:.0f}/s",
            f"{size.controller_rss_mib:.0f} MiB",
            f"{size.controller_cpu_s:.0f} s",
            f"{size.restart_to_first_round_s:.1f} s",
            f"{size.seconds:.0f}",
        )
        for size in report.sizes
    ]
    console.print(table("placement controller with a real API server", columns, rows))
    growth = ", ".join(f"{name} {exponent:.2f}" for name, exponent in report.growth.items())
    console.print(f"growth exponents: {growth}", highlight=False)
    for name, met in report.met.items():
        console.print(f"{'met' if met else 'MISSED'}: {name}", style="" if met else "bold red", highlight=False)
