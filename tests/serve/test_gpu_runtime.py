"""Models on a GPU: workers keep their widths, and the server survives the failure of workers.

All tests use a software GPU with MPS: workers are real processes, and the device's own counters are checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotenant.node.daemon.mps import MpsControl
from cotenant.runner.clock import pause
from cotenant.serve.runtime.gpu.launch import ProcessLauncher
from cotenant.serve.runtime.gpu.runtime import GpuRuntime
from cotenant.serve.runtime.gpu.worker_pool import WorkerLimits
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError
from cotenant.serve.runtime.standalone import StandaloneRuntime
from cotenant.serve.runtime.threads import RunResult
from cotenant.softgpu import manage
from cotenant.units.instant import SECOND_NS
from tests.support.model_servers import Server, identity

pytestmark = pytest.mark.live

TENSORS = """
[[input]]
name = "IN"
datatype = "FP32"
shape = [4]
[[output]]
name = "OUT"
datatype = "INT32"
shape = [2]
"""
WIDE = f"""
max_batch = 4
rounds = 4
weights = "2MiB"
{TENSORS}
[[kernel]]
name = "wide"
block_time = "100us"
blocks = 400
per_sm = 1
"""
QUICK = f"""
max_batch = 4
{TENSORS}
[[kernel]]
name = "narrow"
block_time = "50us"
blocks_per_row = 1
"""
LONG = f"""
{TENSORS}
[[kernel]]
name = "long"
block_time = "1500ms"
blocks = 1
"""
ENDLESS = LONG.replace("1500ms", "600s")


class GpuHost:
    """Directories, a software GPU with MPS, and models."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.reports: list[str] = []
        self.gpus = home / "run" / "softgpu"
        (home / "run").mkdir(mode=0o700)
        manage.create(self.gpus, "v100", 1)
        environ = {**os.environ, **manage.env(self.gpus)}
        self.mps = MpsControl(home / "mps", environ, [self.gpus])
        self.mps.start()
        self.environ = {**environ, **self.mps.environment()}

    def folder(self, name: str, **models: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))  # a test that is retried has its own
        for model, text in models.items():
            (folder / f"{model}.replay.toml").write_text(text)
        return folder

    @contextmanager
    def standalone(
        self, folder: Path, kind: str = "replay", run_s: int = 60, workers: int = 8
    ) -> Iterator[StandaloneRuntime]:
        """Return a runtime for the models of a directory, without a server."""
        limits = WorkerLimits(workers=workers, run_ns=run_s * SECOND_NS, start_ns=60 * SECOND_NS)
        standalone = StandaloneRuntime(
            GpuRuntime(kind, ProcessLauncher(self.environ), limits, self.reports.append), [folder], (0,)
        )
        try:
            yield standalone
        finally:
            standalone.close()
        until(lambda: not self.clients())  # the device notices the end of a worker with a delay

    def clients(self) -> list[dict[str, Any]]:
        clients: list[dict[str, Any]] = manage.inspect(self.gpus, 0)["clients"]
        return clients

    def pids(self) -> set[int]:
        return {client["pid"] for client in self.clients()}


@pytest.fixture(scope="module")
def gpu_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    gpu_host = GpuHost(tmp_path_factory.mktemp("gpu"))
    yield gpu_host
    gpu_host.mps.quit()
    manage.destroy(gpu_host.gpus)


def load(standalone: StandaloneRuntime, name: str, *widths: int) -> LoadedModel:
    model = standalone.load(standalone.repository.scan()[name])
    standalone.prepare(model, widths)
    return model


def run(standalone: StandaloneRuntime, model: LoadedModel, rows: int, units: int) -> RunResult:
    shape = (rows, 4) if model.spec.max_batch else (4,)
    return standalone.run(model, [np.ones(shape, np.float32)], rows, units)


def until(condition: Callable[[], Any]) -> Any:
    """Return the first true value of a function."""
    for _ in range(6000):
        value = condition()
        if value:
            return value
        pause(0.02)
    raise AssertionError("the condition was never true")


def test_run_uses_the_sms_of_its_width(gpu_host: GpuHost) -> None:
    """By the device's counters: at most the SMs of the width, and all of them; unshared: the whole device."""
    with gpu_host.standalone(gpu_host.folder("width", wide=WIDE)) as standalone:
        wide = load(standalone, "wide", 30)
        for units, sms in ((30, 24), (0, 80), (10, 8)):
            previous = {client["pid"]: client["counters"] for client in gpu_host.clients()}
            result = run(standalone, wide, 3, units)
            assert not result.failure
            assert result.answers[0][0].tolist() == [[0, 0]] * 3
            used = [0, 0]
            for client in gpu_host.clients():
                old = previous.get(client["pid"], {"sm_ns": 0, "busy_ns": 0})
                used[0] += client["counters"]["sm_ns"] - old["sm_ns"]
                used[1] += client["counters"]["busy_ns"] - old["busy_ns"]
            assert 0.8 * sms * used[1] < used[0] <= sms * used[1]  # the last wave of a grid is incomplete
        wide.close()


def test_narrower_worker_replaces_a_width_that_is_not_ready(gpu_host: GpuHost) -> None:
    with gpu_host.standalone(gpu_host.folder("narrower", quick=QUICK)) as standalone:
        quick = load(standalone, "quick", 100)
        assert not run(standalone, quick, 1, 60).failure  # no worker of up to 60 % is ready: the run waits for its own
        previous_pids = gpu_host.pids()
        kernels = {client["pid"]: client["counters"]["kernels"] for client in gpu_host.clients()}
        assert not run(standalone, quick, 1, 90).failure  # 60 % is ready
        active = [
            client for client in gpu_host.clients() if client["counters"]["kernels"] > kernels.get(client["pid"], 0)
        ]
        assert len(active) == 1
        assert active[0]["pid"] in previous_pids
        until(lambda: len(gpu_host.pids()) == 3)  # 90 % is ready for the next one
        statistics = standalone.runtime.worker_statistics()
        assert statistics is not None
        assert (statistics.workers, statistics.waits, statistics.narrower, statistics.ended) == (3, 1, 1, 0)
        assert statistics.waited_ns > 0


def test_workers_are_limited_and_the_longest_idle_is_released(gpu_host: GpuHost) -> None:
    """Only a waiting run displaces an idle worker; workers started in advance displace none."""
    with gpu_host.standalone(gpu_host.folder("bounded", quick=QUICK), workers=2) as standalone:
        quick = load(standalone, "quick", 10, 20, 40, 60, 100)
        runtime = standalone.runtime
        assert isinstance(runtime, GpuRuntime)
        for units, widths in ((10, [10, 100]), (40, [10, 40]), (10, [10, 40]), (100, [10, 100]), (20, [10, 100])):
            assert not run(standalone, quick, 1, units).failure  # a worker of 10 % replaces one of 20 %
            assert runtime.workers() == widths


def test_run_of_a_dead_worker_is_retried_and_workers_are_restarted(gpu_host: GpuHost) -> None:
    """Under MPS, a death with work in flight also affects the other clients, which are restarted."""
    with gpu_host.standalone(gpu_host.folder("death", long=LONG, quick=QUICK)) as standalone:
        long, quick = load(standalone, "long", 100), load(standalone, "quick", 100)
        assert not run(standalone, quick, 1, 100).failure

        def all_replaced() -> bool:
            """Return whether all workers were replaced; they are not if no work was in flight."""
            busy_ns = {client["pid"]: client["counters"]["busy_ns"] for client in gpu_host.clients()}
            killer = threading.Thread(target=kill_busy_worker, args=(gpu_host, busy_ns))
            killer.start()
            assert not run(standalone, long, 1, 100).failure
            killer.join()
            assert not run(standalone, quick, 4, 100).failure
            return not busy_ns.keys() & gpu_host.pids()

        assert any(all_replaced() for _ in range(5))


def kill_busy_worker(gpu_host: GpuHost, busy_ns: dict[int, int]) -> None:
    """Kill the worker after it was busy for this long."""

    def busy() -> list[int]:
        now_ns = {client["pid"]: client["counters"]["busy_ns"] for client in gpu_host.clients()}
        return [pid for pid, previous_ns in busy_ns.items() if now_ns.get(pid, 0) > previous_ns]

    os.kill(until(busy)[0], signal.SIGKILL)


def test_new_requests_get_503_while_workers_are_restarted(gpu_host: GpuHost) -> None:
    """Kill workers until new requests are refused; the server is not ready meanwhile, and serves again afterwards."""
    folder = gpu_host.folder("killed", long=LONG.replace("1500ms", "300ms"))
    flags = ("--runtime-dir", str(gpu_host.home / "run"), "--state-dir", str(gpu_host.home / "state"))
    server = Server(folder, "--runtime", "replay", "--tenants", "no", *flags)
    stop = threading.Event()

    def kill_workers() -> None:
        while not stop.wait(0.02):
            for pid in gpu_host.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_workers)
    try:
        killer.start()
        until(lambda: is_refused_for_restart(server, "long"))
        until(lambda: status_of(server, "v2/health/ready") == 503)
        stop.set()
        until(lambda: status_of(server, "v2/health/ready") == 200)
        assert infer_status(server, "long") == 200
    finally:
        stop.set()
        killer.join()
        server.stop()


def is_refused_for_restart(server: Server, model: str) -> bool:
    """Return whether a request was not admitted; one that was may be answered, or fail after it lost four workers."""
    try:
        infer_status(server, model)
    except urllib.error.HTTPError as error:
        can_retry = error.code == 503 and int(error.headers.get("Retry-After", 0)) > 0
        return can_retry and "are being restarted" in error.read().decode()
    return False


def status_of(server: Server, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{server.http}/{path}", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_hung_run_is_abandoned_without_affecting_others(gpu_host: GpuHost) -> None:
    with gpu_host.standalone(gpu_host.folder("hang", endless=ENDLESS, quick=QUICK), run_s=1) as standalone:
        endless, quick = load(standalone, "endless", 100), load(standalone, "quick", 100)
        previous_pids = gpu_host.pids()
        assert "took longer than 1 s" in run(standalone, endless, 1, 100).failure
        until(lambda: len(previous_pids & gpu_host.pids()) < 2)
        assert isinstance(standalone.runtime, GpuRuntime)
        pool = standalone.runtime._pool
        assert pool is not None
        pool._limits = pool._limits._replace(run_ns=60 * SECOND_NS)  # a healthy worker may be slow
        assert not run(standalone, quick, 1, 100).failure
        assert len(previous_pids & gpu_host.pids()) == 1, "the other model's worker was affected"


def test_model_that_the_runtime_cannot_run_is_rejected_with_reason(gpu_host: GpuHost) -> None:
    folder = gpu_host.folder("refused", quick=QUICK, damaged="rounds = 0\n")
    identity(folder / "onnx.onnx", "FP32")
    (folder / "quick.toml").write_text("max_batch = 5\n")
    with gpu_host.standalone(folder) as standalone:
        for name, message in (
            ("damaged", "damaged.replay.toml"),
            ("onnx", "only .replay.toml files do"),
            ("quick", "has launches for 4"),
        ):
            with pytest.raises(ModelLoadError, match=message):
                standalone.load(standalone.repository.scan()[name])
    with (
        gpu_host.standalone(folder, kind="onnx-cuda") as standalone,
        pytest.raises(ModelLoadError, match="has no CUDAExecutionProvider here"),
    ):
        standalone.load(standalone.repository.scan()["onnx"])


def test_tenant_workers_run_concurrently_and_end_with_their_server(gpu_host: GpuHost) -> None:
    """Workers have quotas, one of them too small; all are online with the same priority, so none waits for another."""
    flags_of_node = ("--runtime-dir", str(gpu_host.home / "run"), "--state-dir", str(gpu_host.home / "state"))
    command = [sys.executable, "-m", "cotenant"]
    node = subprocess.Popen([*command, "node", *flags_of_node, "--mps", "on"], stderr=subprocess.PIPE, text=True)
    server = None
    try:
        assert node.stderr is not None
        assert any("the MPS server of GPU 0 is ready" in line for line in node.stderr)
        folder = gpu_host.folder("tenants", one=LONG, two=LONG, poor=WIDE)
        (folder / "poor.toml").write_text('memory = "1MiB"\n')
        for name in ("one", "two"):
            (folder / f"{name}.toml").write_text("share = 50\n")
        flags = ("--runtime-dir", flags_of_node[1], "--state-dir", flags_of_node[3])
        server = Server(folder, "--runtime", "replay", "--tenants", "yes", *flags)
        assert server.models == ["one", "two"]
        listed = json.loads(subprocess.check_output([*command, "ps", *flags_of_node, "--json"]))
        assert sorted({tenant["name"].partition(".")[0] for tenant in listed["tenants"]}) == server.models
        assert any(ran_concurrently(gpu_host, server) for _ in range(5)), "they ran one after the other"
        server.process.kill()
        server.process.communicate()
        until(lambda: not gpu_host.clients())
        until(lambda: not json.loads(subprocess.check_output([*command, "ps", *flags_of_node, "--json"]))["tenants"])
    finally:
        if server is not None:
            server.process.kill()
        node.terminate()
        node.communicate()


def ran_concurrently(gpu_host: GpuHost, server: Server) -> bool:
    """Return whether two concurrent requests took less device time than their sum; they may have overlapped late."""

    def busy_ns() -> tuple[int, int]:
        counters = manage.inspect(gpu_host.gpus, 0)
        return sum(client["counters"]["busy_ns"] for client in counters["clients"]), counters["counters"]["busy_ns"]

    previous = busy_ns()
    with ThreadPoolExecutor(2) as senders:
        assert list(senders.map(lambda name: infer_status(server, name), server.models)) == [200, 200]
    sum_ns, device_ns = (current - earlier for current, earlier in zip(busy_ns(), previous, strict=True))
    return sum_ns > 1.5 * device_ns


def infer_status(server: Server, model: str) -> int:
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}).encode()
    url = f"http://{server.http}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
        return int(answer.status)
