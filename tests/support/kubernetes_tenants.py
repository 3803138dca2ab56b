"""Pods that use a GPU and record what happens to them, for tests that disturb the parts of a cluster."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any

from cotenant_lab.kubernetes.cluster import TestCluster
from cotenant_lab.kubernetes.images import PYTHON_IMAGE

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
GPU_NODE = "/apis/cotenant.dev/v1alpha1/gpunodes/node-0"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"

_GPU = '''
import ctypes, json, os, pathlib, signal, sys, time
IMAGE = b"""softgpu-image 1
kernel spin
  params 8
  duration_param 0
  blocks_per_sm 8
"""
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()


def check(code):
    if code:
        raise RuntimeError(f"CUDA error {code}")


def begin():
    check(cuda.cuInit(0))
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    check(cuda.cuModuleLoadData(ctypes.byref(module), IMAGE))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin"))


def launch(nanoseconds):
    value = ctypes.c_uint64(nanoseconds)
    values = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
    check(cuda.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, None, values, None))
    check(cuda.cuCtxSynchronize())


def hook():
    """Return the path of the hook that this process has mapped."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return next((line.split()[-1] for line in lines if "/usr/local/cotenant/" in line), "none")
'''

_OFFLINE = (
    _GPU
    + """
record = pathlib.Path("/record")


def note(text):
    with (record / os.environ["JOB"]).open("a") as file:
        file.write(f"{text} {os.environ['POD']}\\n")


def stop(*_):
    note("stop")
    os._exit(143)


signal.signal(signal.SIGTERM, stop)
note("start")
begin()
note(f"hook={hook()}")
launch(1_000_000)
while os.environ["WAITS"] == "yes" and not (record / f"{os.environ['JOB']}.end").exists():
    launch(1_000_000)
    time.sleep(0.02)
note("finish")
"""
)

_ONLINE = (
    _GPU
    + """
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    served = 0

    def do_GET(self):
        launch(200_000)
        Handler.served += 1
        body = json.dumps({"served": Handler.served, "hook": hook()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
begin()
HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
)


def offline_job(name: str, record: Path, *, waits: bool = False, **spec: Any) -> dict[str, Any]:
    """Return a Job whose program notes its start and end in a file; with `waits` it ends when `Records.end` asks it to.

    No failure is retried, so an eviction that counted as one would end the Job.
    """
    field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "main",
        "image": PYTHON_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", _OFFLINE],
        "env": [
            {"name": "JOB", "value": name},
            {"name": "POD", **field},
            {"name": "WAITS", "value": "yes" if waits else "no"},
        ],
        "volumeMounts": [{"name": "record", "mountPath": "/record"}],
    }
    annotations = {"cotenant.dev/kind": "offline", "cotenant.dev/memory": "1GiB", "cotenant.dev/task": "disturbed"}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": "record", "hostPath": {"path": str(record), "type": "Directory"}}],
    }
    template = {"metadata": {"annotations": annotations}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"backoffLimit": 0, "template": template, **spec},
    }


def online_deployment(name: str) -> dict[str, Any]:
    """Return a Deployment with one pod that answers each request after a launch on its GPU."""
    annotations = {
        "cotenant.dev/kind": "online",
        "cotenant.dev/slo": "200ms",
        "cotenant.dev/memory": "1GiB",
        "cotenant.dev/share": "30%",
    }
    container = {
        "name": "main",
        "image": PYTHON_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", _ONLINE],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
    }
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


class Records:
    """The directory of the node in which the programs of Jobs note what they do."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o777, parents=True, exist_ok=True)
        directory.chmod(0o777)
        self.directory = directory

    def lines(self, job: str) -> list[str]:
        """Return the notes of a Job without the names of its pods: start, hook=PATH, stop, finish."""
        path = self.directory / job
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, job: str) -> list[str]:
        """Return the notes about start and end of a Job's programs."""
        return [line for line in self.lines(job) if not line.startswith("hook=")]

    def hook(self, job: str) -> str:
        """Return the path of the hook that the program of a Job has loaded."""
        return next((line.removeprefix("hook=") for line in self.lines(job) if line.startswith("hook=")), "")

    def clear(self) -> None:
        """Remove all notes."""
        for path in self.directory.iterdir():
            path.unlink()

    def end(self, job: str) -> None:
        """Let the program of a Job that waits come to its end."""
        (self.directory / f"{job}.end").touch()


class RequestLoop(threading.Thread):
    """Sends requests to an online pod, one after the other, and keeps what went wrong."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._is_over = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self.hooks: set[str] = set()

    def run(self) -> None:
        """Send requests until `close`."""
        while not self._is_over.wait(0.05):
            connection = http.client.HTTPConnection(self._address, 8000, timeout=60)
            try:
                connection.request("GET", "/")
                answer = json.loads(connection.getresponse().read())
                self.hooks.add(answer["hook"])
                self.answered += 1
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            finally:
                connection.close()

    def close(self) -> None:
        """Send no more requests."""
        self._is_over.set()
        self.join()


class Tenants:
    """Creates Jobs and Deployments of a cluster, waits for them, and removes them."""

    def __init__(self, cluster: TestCluster, records: Records) -> None:
        self.cluster = cluster
        self.records = records

    def start_job(self, name: str, *, waits: bool = False, **spec: Any) -> None:
        """Create a Job."""
        self.cluster.request("POST", JOBS, offline_job(name, self.records.directory, waits=waits, **spec))

    def start_online(self, name: str) -> RequestLoop:
        """Create a Deployment, wait until its pod answers, and begin to send it requests."""
        self.cluster.request("POST", DEPLOYMENTS, online_deployment(name))
        self.wait_online(name)
        loop = RequestLoop(self.pod_of(name, "app")["status"]["podIP"])
        loop.start()
        self.cluster.wait(f"{name} answers requests", lambda: loop.answered > 0)
        return loop

    def wait_online(self, name: str) -> None:
        """Wait until the pod of a Deployment is ready."""
        path = f"{DEPLOYMENTS}/{name}"
        self.cluster.wait(f"{name} is ready", lambda: self.cluster.get(path)["status"].get("readyReplicas") == 1)

    def pods_of(self, name: str, label: str = "job-name") -> list[dict[str, Any]]:
        """Return the pods of a Job, or with the label `app` those of a Deployment."""
        return list(self.cluster.get(PODS, labelSelector=f"{label}={name}")["items"])

    def pod_of(self, name: str, label: str = "job-name") -> dict[str, Any]:
        """Return the only pod of a Job or Deployment that is not being deleted."""
        [pod] = [pod for pod in self.pods_of(name, label) if "deletionTimestamp" not in pod["metadata"]]
        return pod

    def containers(self) -> dict[str, tuple[str, int]]:
        """Return the container and its number of restarts of every pod that runs."""
        return {
            pod["metadata"]["name"]: (status["containerID"], status["restartCount"])
            for pod in self.cluster.get(PODS)["items"]
            for status in pod["status"].get("containerStatuses", ())
            if "running" in status["state"]
        }

    def wait_started(self, *jobs: str) -> None:
        """Wait until the programs of Jobs run on a GPU."""
        for job in jobs:
            self.cluster.wait(f"{job} runs", lambda job=job: bool(self.records.hook(job)))  # type: ignore[misc]

    def wait_finished(self, *jobs: str, timeout_s: float = 240) -> None:
        """Wait until Jobs are complete; fail at once if one failed."""

        def are_complete() -> bool:
            found = {job["metadata"]["name"]: job.get("status", {}) for job in self.cluster.get(JOBS)["items"]}
            failed = [name for name in jobs if found[name].get("failed")]
            assert not failed, f"{failed} failed: {[self.records.lines(name) for name in failed]}"
            return all(found[name].get("succeeded") for name in jobs)

        self.cluster.wait(f"{len(jobs)} Jobs are complete, from {jobs[0]} on", are_complete, timeout_s)

    def placed(self, job: str) -> dict[str, Any]:
        """Return the condition of a Job's pod that says whether and why it waits; empty if there is none yet."""
        for pod in self.pods_of(job):
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] == "cotenant.dev/Placed":
                    return dict(condition)
        return {}

    def remove(self) -> None:
        """Remove all Jobs and Deployments with their pods, and wait until their claims are gone."""
        delete = {"propagationPolicy": "Background", "kind": "DeleteOptions", "apiVersion": "v1"}
        for path in (JOBS, DEPLOYMENTS):
            for item in self.cluster.get(path)["items"]:
                self.cluster.request("DELETE", f"{path}/{item['metadata']['name']}", delete)
        self.cluster.wait("all pods are gone", lambda: not self.cluster.get(PODS)["items"])
        self.cluster.wait("all claims are gone", lambda: not self.cluster.get(CLAIMS)["items"])
        self.records.clear()
        cdi = self.cluster.nodes[0].cdi
        self.cluster.wait("all claims are released", lambda: not list(cdi.glob("cotenant.dev-claim-*")))
