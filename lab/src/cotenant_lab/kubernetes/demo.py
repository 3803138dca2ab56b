"""`make demo-kubernetes`: a service and six training Jobs share two software GPUs of a real Kubernetes cluster.

The manifests are those of deploy/examples. A load generator sends requests to the service all the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from cotenant.cli.render.tables import table
from cotenant.runner.clock import monotonic_ns, pause
from cotenant_lab.kubernetes import binaries
from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.installation import CLAIMS, EXAMPLES, Installation
from cotenant_lab.kubernetes.namespaces import require_root
from cotenant_lab.kubernetes.product_images import write_product_images
from cotenant_lab.kubernetes.request_load import RequestLoad, percentile_ms

SLO_MS: Final = 50.0
"""The objective in online-deployment.yaml."""
JOBS: Final = 6
_WARM_UP_REQUESTS: Final = 40
_ALONE_REQUESTS: Final = 200
_LIMIT_S: Final = 900
_PODS: Final = "/api/v1/namespaces/default/pods"


class JobRecord:
    """What was seen of one Job."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = ""
        self.waited: list[str] = []
        """The reasons for which its pod waited, in the order in which they were seen."""
        self.began_s: float | None = None
        self.ended_s: float | None = None


class Observer:
    """Follows the pods of Jobs and their claims."""

    def __init__(self, cluster: TestCluster) -> None:
        """Begin without Jobs; times count from now."""
        self._cluster = cluster
        self._begin_ns = monotonic_ns()
        self.jobs: dict[str, JobRecord] = {}

    def observe(self) -> None:
        """Record what changed."""
        now_s = (monotonic_ns() - self._begin_ns) / 1e9
        places = {claim["metadata"]["name"]: _place(claim) for claim in self._cluster.get(CLAIMS)["items"]}
        for pod in self._cluster.get(_PODS, labelSelector="batch.kubernetes.io/job-name")["items"]:
            name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            record = self.jobs.setdefault(name, JobRecord(name))
            phase = pod["status"].get("phase")
            if phase == "Pending" and (reason := _waiting_reason(pod)) and reason not in record.waited:
                record.waited.append(reason)
            claim = pod["metadata"]["labels"].get("cotenant.dev/claim", "")
            record.where = places.get(claim) or record.where
            if phase in {"Running", "Succeeded"} and record.began_s is None:
                record.began_s = now_s
            if phase == "Succeeded" and record.ended_s is None:
                record.ended_s = now_s

    @property
    def finished(self) -> int:
        """Return the number of Jobs whose pod succeeded."""
        return sum(record.ended_s is not None for record in self.jobs.values())


def _place(claim: Any) -> str:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return ", ".join(f"{result['pool']} {result['device']}" for result in results)


def _waiting_reason(pod: Any) -> str:
    conditions = pod["status"].get("conditions", ())
    found = [one for one in conditions if (one["type"], one["status"]) == ("cotenant.dev/Placed", "False")]
    return str(found[0]["message"]) if found else ""


def run_demo(console: Console, report: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo, print what happened, and return the summary."""
    require_root()  # before a build that takes a quarter of an hour
    binaries.build(list(binaries.MODULES), report)
    with tempfile.TemporaryDirectory(prefix="cotenant-demo-") as directory:
        report("packing the images of the product and of the example programs")
        archive = write_product_images(Path(directory), binaries.cache_directory())
        with TestCluster(1, images=[archive], report=report) as cluster:
            # An error or Ctrl-C ends the cluster, and with it everything that is installed on it.
            installation = Installation(cluster, report=report)
            installation.install()
            summary = _share(cluster, console, report)
            installation.remove()
            left = installation.leftovers()
    left += cluster.leftovers()
    for text in left:
        report(f"left: {text}")
    return {**summary, "leftovers": len(left)}


def _share(cluster: TestCluster, console: Console, report: Callable[[str], None]) -> dict[str, Any]:
    report("kubectl apply -f deploy/examples/online-deployment.yaml")
    cluster.apply(EXAMPLES / "online-deployment.yaml")
    service = _ready_service(cluster)
    [where] = [_place(claim) for claim in cluster.get(CLAIMS)["items"]]
    report(f"the service is ready on {where}; it gets 20 requests per second")
    with RequestLoad(service["status"]["podIP"]) as load:
        load.wait_for(_WARM_UP_REQUESTS)
        load.take()
        load.wait_for(_ALONE_REQUESTS)
        alone = load.take()
        report(f"p99 alone: {percentile_ms(alone, 0.99):.1f} ms of {SLO_MS:.0f} ms")
        report("kubectl apply -f deploy/examples/offline-jobs.yaml")
        cluster.apply(EXAMPLES / "offline-jobs.yaml")
        observer = _follow_jobs(cluster, report)
        shared = load.take()
    _show(console, observer)
    rows = []
    for name, times in {"alone": alone, "with offline jobs": shared}.items():
        middle, tail = (f"{percentile_ms(times, part):.1f} ms" for part in (0.5, 0.99))
        rows.append([name, str(len(times)), middle, tail])
    console.print()
    console.print(table(f"search-ranking, SLO {SLO_MS:.0f} ms", ["RUN", "REQUESTS", "P50", "P99"], rows))
    if load.failed:
        console.print(f"{load.failed} requests failed")
    p99 = round(percentile_ms(shared, 0.99), 3)
    return {
        "jobs_finished": observer.finished,
        "online_p99_ms": p99,
        "slo_ms": SLO_MS,
        "slo_met": bool(shared) and not load.failed and p99 <= SLO_MS,
    }


def _ready_service(cluster: TestCluster) -> Any:
    def pods() -> list[Any]:
        found = cluster.get(_PODS, labelSelector="app=search-ranking")["items"]
        return [pod for pod in found if _is_ready(pod)]

    cluster.wait("the service is ready", lambda: bool(pods()), 180)
    return pods()[0]


def _is_ready(pod: Any) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


def _follow_jobs(cluster: TestCluster, report: Callable[[str], None]) -> Observer:
    """Observe the Jobs until all have finished; report each end."""
    observer = Observer(cluster)
    until_ns = monotonic_ns() + _LIMIT_S * 10**9
    reported: set[str] = set()
    while len(reported) < JOBS and monotonic_ns() < until_ns:
        observer.observe()
        for record in observer.jobs.values():
            if record.ended_s is not None and record.name not in reported:
                reported.add(record.name)
                report(f"{record.name} finished on {record.where}")
        pause(0.5)
    return observer


def _show(console: Console, observer: Observer) -> None:
    rows = [
        [
            record.name,
            record.where or "-",
            "-" if record.began_s is None else f"{record.began_s:.0f} s",
            "-" if record.ended_s is None else f"{record.ended_s:.0f} s",
            "; then: ".join(record.waited) or "-",
        ]
        for record in sorted(observer.jobs.values(), key=lambda one: one.began_s or 1e9)
    ]
    console.print()
    console.print(table("jobs", ["JOB", "RAN ON", "BEGAN", "ENDED", "WHY IT WAITED"], rows, fold=True))
