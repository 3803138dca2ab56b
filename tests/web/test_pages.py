"""Every page of the web console in Chromium, against a node with software GPUs, a model server and a cluster's API."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.runner.clock import rfc3339, unix_ns
from cotenant.web.serve import TOKEN_FILE
from cotenant.web.static import DIRECTORY
from tests.support.api_server import FakeApi, fake_api
from tests.support.model_servers import Server, write_callables
from tests.support.node_processes import NodeHarness

pytestmark = [pytest.mark.web, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cuda_loop.py"
GIB = 1 << 30


def kubeconfig(path: Path, server: str) -> str:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def pod(name: str, uid: str, **status: Any) -> dict[str, Any]:
    annotations = {"cotenant.dev/kind": "offline", "cotenant.dev/memory": "40GiB"}
    metadata = {"name": name, "namespace": "team", "uid": uid, "labels": {"cotenant.dev/kind": "offline"}}
    metadata |= {"annotations": annotations, "creationTimestamp": rfc3339(unix_ns())}
    gates = [{"name": "cotenant.dev/round"}] if "conditions" in status else []
    return {"metadata": metadata, "spec": {"nodeName": "n1", "schedulingGates": gates}, "status": status}


def fill_cluster(api: FakeApi) -> None:
    """Put two nodes with four GPUs, a pair that shares one, and a pod that waits."""
    use = {"dutyPpm": 300_000, "activePpm": 300_000, "kernelNs": 50_000, "roundNs": 2_000_000}
    online = [{"name": "search", "podUid": "u1", "sloNs": 50_000_000, "use": use}]
    gpus = [
        {
            "uuid": f"GPU-{node}-{index}",
            "index": index,
            "type": "V100",
            "memoryBytes": 32 * GIB,
            "freeBytes": 20 * GIB,
            "offerPpm": 600_000,
            "online": online if (node, index) == ("n1", 0) else [],
            "condition": "healthy" if index < 3 else "unhealthy",
        }
        for node in ("n1", "n2")
        for index in range(4)
    ]
    tenant = {"podUid": "p1", "name": "fit", "kind": "offline", "gpus": ["GPU-n1-0"], "ratePpm": 800_000}
    for number, node in enumerate(("n1", "n2")):
        status = {"observedAt": rfc3339(unix_ns()), "gpus": gpus[4 * number : 4 * number + 4]}
        status["tenants"] = [tenant] if node == "n1" else []
        api.put(f"/apis/cotenant.dev/v1alpha1/gpunodes/{node}", {"metadata": {"name": node}, "status": status})
    condition = {"type": "cotenant.dev/Placed", "status": "False", "message": "no GPU has 40GiB free"}
    api.put("/api/v1/pods/fit", pod("fit", "p1", phase="Running"))
    api.put("/api/v1/pods/big", pod("big", "p2", phase="Pending", conditions=[condition]))


@contextlib.contextmanager
def paused_again_and_again(harness: NodeHarness, name: str) -> Iterator[None]:
    """Pause and resume a tenant in turn: whatever the controller permits, it waits at the gate sometimes."""
    is_over = threading.Event()

    def pulse() -> None:
        while not is_over.wait(0.2):
            harness.run("pause", name)
            is_over.wait(0.05)
            harness.run("resume", name)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.fixture
def console(node_harness: NodeHarness, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Start everything that the pages show; return the variables of the browser's tests."""
    harness = node_harness
    assert harness.run("softgpu", "create", "--gpu", "v100", "--count", "2").returncode == 0
    harness.node()
    loop = (
        "--",
        Path(sys.executable).name,
        str(EXAMPLE.relative_to(ROOT)),
    )  # screenshots show it: no path of a machine
    options = ("--memory", "4GiB", "--gpu")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    place: dict[str, Any] = {"cwd": ROOT, "env": {**harness.environ, "PATH": path}}
    harness.tenant(
        "web", "--online", "--slo", "50ms", *options, "soft:0", *loop, "service", "--seconds", "1200", **place
    )
    harness.tenant("train", *options, "soft:0", *loop, "training", "--seconds", "1200", **place)
    harness.tenant("batch", *options, "soft:1", *loop, "training", "--seconds", "1200", **place)
    harness.tenant("pulse", *options, "soft:1", *loop, "training", "--seconds", "1200", **place)
    models = tmp_path / "models"
    models.mkdir()
    write_callables(models)
    server = Server(models)
    with fake_api() as (api, client):
        fill_cluster(api)
        flags = ["--kubeconfig", kubeconfig(tmp_path / "kubeconfig", client.config.server)]
        flags += ["--server", server.http, "--listen", "127.0.0.1:0", "--operate"]
        harness.start(
            "load", f"http://{server.http}", "--model", "slow=20", "--slo", "2s", "--send-slo", "--duration", "1100s"
        )
        web = harness.start("web", *flags)
        assert web.stderr is not None
        line = web.stderr.readline()
        assert "web console: http://127.0.0.1:" in line, line
        token = (harness.directories.state / TOKEN_FILE).read_text().strip()
        with paused_again_and_again(harness, "pulse"):
            yield {"COTENANT_WEB_URL": line.split()[-1].partition("#")[0], "COTENANT_WEB_TOKEN": token}
    server.stop()


def test_every_page_works_in_a_browser(console: dict[str, str]) -> None:
    assert DIRECTORY.is_dir(), "run: make web"
    node, chromium = shutil.which("node"), shutil.which("chromium")
    assert node is not None, "`make test-web` needs Node 20 or newer"
    assert chromium is not None, "`make test-web` needs Chromium: apt-get install chromium"
    environ = {**os.environ, **console, "COTENANT_CHROMIUM": chromium}
    done = subprocess.run(
        [node, "--test", "--test-concurrency=1", "--test-reporter=spec", "tests/pages.mjs"],
        cwd=ROOT / "web",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
