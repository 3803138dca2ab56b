"""Models on a GPU: workers keep their widths, and the server survives the failure of workers.

All tests use a software GPU with MPS: workers are real processes, and the device's own counters are checked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
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


class Place:
    """Directories, a software GPU with MPS, and models."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.said: list[str] = []
        self.gpus = home / "run" / "softgpu"
        (home / "run").mkdir(mode=0o700)
        manage.create(self.gpus, "v100", 1)
        environ = {**os.environ, **manage.env(self.gpus)}
        self.mps = MpsControl(home / "mps", environ, [self.gpus])
        self.mps.start()
        self.environ = {**environ, **self.mps.environment()}

    def folder(self, name: str, **models: str) -> Path:
        folder = self.home / name
        folder.mkdir()
        for model, text in models.items():
            (folder / f"{model}.replay.toml").write_text(text)
        return folder

    @contextmanager
    def solo(
        self, folder: Path, kind: str = "replay", run_s: int = 60, workers: int = 8
    ) -> Iterator[StandaloneRuntime]:
        """Return a runtime for the models of a directory, without a server."""
        limits = WorkerLimits(workers=workers, run_ns=run_s * SECOND_NS, start_ns=60 * SECOND_NS)
        solo = StandaloneRuntime(
            GpuRuntime(kind, ProcessLauncher(self.environ), limits, self.said.append), [folder], (0,)
        )
        try:
            yield solo
        finally:
            solo.close()
        until(lambda: not self.clients())  # the device notices the end of a worker with a delay

    def clients(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = manage.inspect(self.gpus, 0)["clients"]
        return found

    def pids(self) -> set[int]:
        return {one["pid"] for one in self.clients()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("gpu"))
    yield made
    made.mps.quit()
    manage.destroy(made.gpus)


def load(solo: StandaloneRuntime, name: str, *widths: int) -> LoadedModel:
    model = solo.load(solo.repository.scan()[name])
    solo.prepare(model, widths)
    return model


def run(solo: StandaloneRuntime, model: LoadedModel, rows: int, units: int) -> RunResult:
    shape = (rows, 4) if model.spec.max_batch else (4,)
    return solo.run(model, [np.ones(shape, np.float32)], rows, units)


def until(found: Callable[[], Any]) -> Any:
    """Return the first true value of a function."""
    for _ in range(6000):
        value = found()
        if value:
            return value
        pause(0.02)
    raise AssertionError("it never came")


def test_a_run_keeps_to_its_width(place: Place) -> None:
    """By the device's counters: at most the SMs of the width, and all of them; unshared: the whole device."""
    with place.solo(place.folder("width", wide=WIDE)) as solo:
        wide = load(solo, "wide", 30)
        for units, sms in ((30, 24), (0, 80), (10, 8)):
            before = {one["pid"]: one["counters"] for one in place.clients()}
            ended = run(solo, wide, 3, units)
            assert not ended.failure
            assert ended.answers[0][0].tolist() == [[0, 0]] * 3
            used = [0, 0]
            for one in place.clients():
                old = before.get(one["pid"], {"sm_ns": 0, "busy_ns": 0})
                used[0] += one["counters"]["sm_ns"] - old["sm_ns"]
                used[1] += one["counters"]["busy_ns"] - old["busy_ns"]
            assert 0.8 * sms * used[1] < used[0] <= sms * used[1]  # the last wave of a grid is incomplete
        wide.close()


def test_narrower_worker_replaces_a_width_that_is_not_ready(place: Place) -> None:
    with place.solo(place.folder("narrower", quick=QUICK)) as solo:
        quick = load(solo, "quick", 100)
        assert not run(solo, quick, 1, 60).failure  # no worker of up to 60 % is ready: the run waits for its own
        known = place.pids()
        counted = {one["pid"]: one["counters"]["kernels"] for one in place.clients()}
        assert not run(solo, quick, 1, 90).failure  # 60 % is ready
        ran = [one for one in place.clients() if one["counters"]["kernels"] > counted.get(one["pid"], 0)]
        assert len(ran) == 1
        assert ran[0]["pid"] in known
        until(lambda: len(place.pids()) == 3)  # 90 % is ready for the next one
        received = solo.runtime.worker_statistics()
        assert received is not None
        assert (received.workers, received.waits, received.narrower, received.ended) == (3, 1, 1, 0)
        assert received.waited_ns > 0


def test_workers_are_limited_and_the_longest_idle_is_released(place: Place) -> None:
    """Only a waiting run displaces an idle worker; workers started in advance displace none."""
    with place.solo(place.folder("bounded", quick=QUICK), workers=2) as solo:
        quick = load(solo, "quick", 10, 20, 40, 60, 100)
        runtime = solo.runtime
        assert isinstance(runtime, GpuRuntime)
        for units, there in ((10, [10, 100]), (40, [10, 40]), (10, [10, 40]), (100, [10, 100]), (20, [10, 100])):
            assert not run(solo, quick, 1, units).failure  # a worker of 10 % replaces one of 20 %
            assert runtime.workers() == there


def test_run_of_a_dead_worker_is_retried_and_workers_are_restarted(place: Place) -> None:
    """Under MPS, a death with work in flight also affects the other clients, which are restarted."""
    with place.solo(place.folder("death", long=LONG, quick=QUICK)) as solo:
        long, quick = load(solo, "long", 100), load(solo, "quick", 100)
        assert not run(solo, quick, 1, 100).failure

        def struck() -> bool:
            """Return whether all workers are new; not so if no work was in flight any more."""
            busy_ns = {one["pid"]: one["counters"]["busy_ns"] for one in place.clients()}
            killer = threading.Thread(target=strike, args=(place, busy_ns))
            killer.start()
            assert not run(solo, long, 1, 100).failure
            killer.join()
            assert not run(solo, quick, 4, 100).failure
            return not busy_ns.keys() & place.pids()

        assert any(struck() for _ in range(5))


def strike(place: Place, busy_ns: dict[int, int]) -> None:
    """Kill the worker after it was busy for this long."""

    def busy() -> list[int]:
        found = {one["pid"]: one["counters"]["busy_ns"] for one in place.clients()}
        return [pid for pid, known_ns in busy_ns.items() if found.get(pid, 0) > known_ns]

    os.kill(until(busy)[0], signal.SIGKILL)


def test_hung_run_is_abandoned_without_affecting_others(place: Place) -> None:
    with place.solo(place.folder("hang", endless=ENDLESS, quick=QUICK), run_s=1) as solo:
        endless, quick = load(solo, "endless", 100), load(solo, "quick", 100)
        before = place.pids()
        assert "took longer than 1 s" in run(solo, endless, 1, 100).failure
        until(lambda: len(before & place.pids()) < 2)
        assert isinstance(solo.runtime, GpuRuntime)
        pool = solo.runtime._pool
        assert pool is not None
        pool._limits = pool._limits._replace(run_ns=60 * SECOND_NS)  # a healthy worker may be slow
        assert not run(solo, quick, 1, 100).failure
        assert len(before & place.pids()) == 1, "the other model's worker was struck"


def test_what_does_not_run_there_is_refused_in_a_sentence(place: Place) -> None:
    folder = place.folder("refused", quick=QUICK, damaged="rounds = 0\n")
    identity(folder / "onnx.onnx", "FP32")
    (folder / "quick.toml").write_text("max_batch = 5\n")
    with place.solo(folder) as solo:
        for name, why in (
            ("damaged", "damaged.replay.toml"),
            ("onnx", "only .replay.toml files do"),
            ("quick", "has launches for 4"),
        ):
            with pytest.raises(ModelLoadError, match=why):
                solo.load(solo.repository.scan()[name])
    with (
        place.solo(folder, kind="onnx-cuda") as solo,
        pytest.raises(ModelLoadError, match="has no CUDAExecutionProvider here"),
    ):
        solo.load(solo.repository.scan()["onnx"])


def test_workers_are_tenants_that_pass_each_other_at_the_gate_and_end_with_their_server(place: Place) -> None:
    """Workers have quotas, one of them too small; all are online with the same priority, so none waits for another."""
    where = ("--runtime-dir", str(place.home / "run"), "--state-dir", str(place.home / "state"))
    command = [sys.executable, "-m", "cotenant"]
    node = subprocess.Popen([*command, "node", *where, "--mps", "on"], stderr=subprocess.PIPE, text=True)
    server = None
    try:
        assert node.stderr is not None
        assert any("the MPS server of GPU 0 is ready" in line for line in node.stderr)
        folder = place.folder("tenants", one=LONG, two=LONG, poor=WIDE)
        (folder / "poor.toml").write_text('memory = "1MiB"\n')
        for name in ("one", "two"):
            (folder / f"{name}.toml").write_text("share = 50\n")
        flags = ("--runtime-dir", where[1], "--state-dir", where[3])
        server = Server(folder, "--runtime", "replay", "--tenants", "yes", *flags)
        assert server.models == ["one", "two"]
        listed = json.loads(subprocess.check_output([*command, "ps", *where, "--json"]))
        assert sorted({one["name"].partition(".")[0] for one in listed["tenants"]}) == server.models
        assert any(pass_each_other(place, server) for _ in range(5)), "they ran one after the other"
        server.process.kill()
        server.process.communicate()
        until(lambda: not place.clients())
        until(lambda: not json.loads(subprocess.check_output([*command, "ps", *where, "--json"]))["tenants"])
    finally:
        if server is not None:
            server.process.kill()
        node.terminate()
        node.communicate()


def pass_each_other(place: Place, server: Server) -> bool:
    """Return whether two concurrent requests took less device time than their sum; they may have overlapped late."""

    def busy_ns() -> tuple[int, int]:
        counters = manage.inspect(place.gpus, 0)
        return sum(one["counters"]["busy_ns"] for one in counters["clients"]), counters["counters"]["busy_ns"]

    before = busy_ns()
    with ThreadPoolExecutor(2) as senders:
        assert list(senders.map(lambda name: answered(server, name), server.models)) == [200, 200]
    each, together = (now - then for now, then in zip(busy_ns(), before, strict=True))
    return each > 1.5 * together


def answered(server: Server, model: str) -> int:
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}).encode()
    url = f"http://{server.http}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
        return int(answer.status)
