"""Parts of `make demo-kubernetes` that need no cluster: what it records of Jobs, and its load generator."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from cotenant_lab.kubernetes.demo import JOBS, SLO_MS, Observer
from cotenant_lab.kubernetes.installation import EXAMPLES
from cotenant_lab.kubernetes.request_load import RequestLoad, percentile_ms


class ScriptedCluster:
    """Answers lists of claims and pods."""

    def __init__(self) -> None:
        self.claims: list[Any] = []
        self.pods: list[Any] = []

    def get(self, path: str, **query: str) -> Any:
        return {"items": self.claims if "claims" in path else self.pods}


def pod(job: str, phase: str, reason: str = "") -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": job, "cotenant.dev/claim": f"{job}-gpu"}
    conditions = [{"type": "cotenant.dev/Placed", "status": "False", "message": reason}] if reason else []
    return {"metadata": {"labels": labels}, "status": {"phase": phase, "conditions": conditions}}


def claim(job: str, *devices: str) -> dict[str, Any]:
    results = [{"pool": "node-0", "device": device} for device in devices]
    return {"metadata": {"name": f"{job}-gpu"}, "status": {"allocation": {"devices": {"results": results}}}}


def test_the_observer_records_where_jobs_ran_and_why_they_waited() -> None:
    cluster = ScriptedCluster()
    observer = Observer(cluster)  # type: ignore[arg-type]
    cluster.pods = [pod("a", "Running"), pod("b", "Pending", "None of 2 GPUs is open: 2 held")]
    cluster.claims = [claim("a", "gpu-1")]
    observer.observe()
    assert (observer.finished, observer.jobs["a"].where, observer.jobs["b"].where) == (0, "node-0 gpu-1", "")
    cluster.pods = [pod("a", "Succeeded"), pod("b", "Pending", "None of 2 GPUs is open: 2 held")]
    cluster.claims = [claim("a"), claim("b", "gpu-0")]
    observer.observe()
    assert (observer.finished, observer.jobs["a"].where, observer.jobs["b"].where) == (
        1,
        "node-0 gpu-1",
        "node-0 gpu-0",
    )
    assert observer.jobs["b"].waited == ["None of 2 GPUs is open: 2 held"]
    assert observer.jobs["b"].began_s is None


def test_the_examples_are_what_the_demo_says() -> None:
    jobs = list(yaml.safe_load_all((EXAMPLES / "offline-jobs.yaml").read_text()))
    assert [job["kind"] for job in jobs] == ["Job"] * JOBS
    assert len({job["metadata"]["name"] for job in jobs}) == JOBS
    service = yaml.safe_load((EXAMPLES / "online-deployment.yaml").read_text())
    assert service["spec"]["template"]["metadata"]["annotations"]["cotenant.dev/slo"] == f"{SLO_MS:.0f}ms"


@pytest.mark.live
def test_the_load_generator_counts_answers_and_failures() -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        count = 0

        def do_GET(self) -> None:
            Handler.count += 1
            self.send_response(500 if Handler.count % 2 else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Log no requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with RequestLoad("127.0.0.1", server.server_port, period_ms=1) as load:
            load.wait_for(20)
            taken = load.take()
            failed = load.failed
        server.shutdown()
        thread.join()
    assert len(taken) >= 20
    assert abs(len(taken) - failed) <= 2
    assert min(taken) > 0
    assert percentile_ms(taken, 0.99) >= percentile_ms(taken, 0.5) > 0
    assert percentile_ms([], 0.99) == 0
