"""A model gives equal results on any cores, runs on those cores only, and has one copy of its weights."""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

from cotenant.serve.model.event import ModelSpec, Run
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.runtime import onnx_sessions as module
from cotenant.serve.runtime.onnx import OnnxModel
from cotenant.serve.runtime.onnx_sessions import UNSHARED, OnnxSessions, remove_stale_weights
from cotenant.serve.runtime.runtime import CpuRuntime
from cotenant.serve.runtime.threads import UNSHARED_LIMIT, CoreThreads, Job, RunResult
from tests.support.model_servers import save

pytestmark = pytest.mark.live

SIDE = 2048
CORES = tuple(sorted(os.sched_getaffinity(0)))
TWO = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a matrix product with a table of 16 MiB."""
    table = np.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", SIDE]) for name in ("X", "Y")]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["X", "T"], ["P"]), helper.make_node("Relu", ["P"], ["Y"])],
        "product",
        tensors[:1],
        tensors[1:],
        [numpy_helper.from_array(table, "T")],
    )
    made = tmp_path_factory.mktemp("sessions") / "product.onnx"
    save(made, graph)
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the directory of the written weights."""
    monkeypatch.setattr(module, "_disk", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def opened(path: Path, home: Path) -> Iterator[OnnxSessions]:
    found = OnnxSessions(path, CORES)
    yield found
    found.close()


def run(session: Any, rows: int) -> Any:
    return session.run(None, {"X": np.linspace(-1, 1, rows * SIDE, dtype=np.float32).reshape(rows, SIDE)})[0]


def anonymous_kib() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))


@TWO
def test_every_width_gives_the_same_and_none_has_weights_of_its_own(opened: OnnxSessions, home: Path) -> None:
    expected = [run(opened.alone, rows) for rows in (1, 5)]
    assert not list(home.iterdir())  # a single session needs no file
    opened.prepare((1, 2, UNSHARED))
    before = anonymous_kib()
    for cores in (CORES[:1], CORES[:2], CORES[1::-1], ()):
        for rows, wanted in zip((1, 5), expected, strict=True):
            with opened.on(cores) as session:
                np.testing.assert_allclose(run(session, rows), wanted, rtol=1e-4, atol=1e-3)
    with opened.on(CORES[:2]), opened.on(CORES[:2]) as second:  # two concurrent runs have a pool each
        run(second, 5)
    assert anonymous_kib() - before < SIDE * SIDE * 4 // 1024 // 2
    (folder,) = home.iterdir()
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}
    assert mapped == {str(folder / "weights")}


@TWO
def test_threads_of_a_pool_are_where_the_run_is(opened: OnnxSessions) -> None:
    for cores in (CORES[:2], CORES[1::-1]):
        with opened.on(cores):
            pass
        (pool,) = opened._idle[2]
        assert len(pool.threads) == 1
        assert os.sched_getaffinity(pool.threads[0]) == {cores[1]}


@TWO
def test_files_go_with_the_model_and_with_the_dead(path: Path, home: Path) -> None:
    one = OnnxSessions(path, CORES)
    one.prepare((2,))
    dead = home / "cotenant-weights-of-the-dead"
    dead.mkdir()
    remove_stale_weights()
    (kept,) = home.iterdir()
    assert kept != dead
    one.close()
    assert not list(home.iterdir())


@TWO
def test_a_model_that_cannot_be_written_has_copies_instead(
    opened: OnnxSessions, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_writing_options", lambda folder: module._options(1))
    with opened.on(CORES[:2]) as session:
        np.testing.assert_allclose(run(session, 2), run(opened.alone, 2), rtol=1e-4, atol=1e-3)
    assert not list(home.iterdir())


def test_unshared_runs_are_done_at_once_each_ends_once_and_too_many_wait(opened: OnnxSessions) -> None:
    takes, gives = ((TensorSpec(name, Datatype.FP32, (-1, SIDE)),) for name in ("X", "Y"))
    model = OnnxModel(ModelSpec("m", "1", "test", takes, gives, 8), opened)
    received: list[RunResult] = []
    heard = threading.Semaphore(0)

    def tell(outcome: RunResult) -> None:
        received.append(outcome)
        heard.release()

    workers = CoreThreads(CORES[:1], tell, lambda number, answer: None)
    count = UNSHARED_LIMIT + 6
    inputs = [np.ones((1, SIDE), np.float32)]
    for number in range(1, count + 1):
        workers.give(Job(Run(0, number, "m", 1, (number,), 1, 0, ()), model, [inputs], [1]))
    for _ in range(count):
        assert heard.acquire(timeout=60)
    workers.stop()
    assert sorted(one.run.run for one in received) == list(range(1, count + 1))
    assert not [one.failure for one in received if one.failure]


def test_all_is_settled_when_the_sessions_are_open_and_not_before() -> None:
    may_open, opened = threading.Event(), []

    class Slow(OnnxModel):
        def __init__(self, name: str) -> None:
            self.name = name

        def prepare(self, widths: Sequence[int]) -> None:
            assert may_open.wait(60)
            opened.append((self.name, *widths))

    async def main() -> None:
        runtime = CpuRuntime(CORES)
        for name in ("a", "b"):
            runtime.prepare(Slow(name), (2,))
        settled = asyncio.ensure_future(runtime.settled())
        await asyncio.wait((settled,), timeout=0.05)
        assert not settled.done()
        may_open.set()
        await asyncio.wait_for(settled, 60)
        assert sorted(opened) == [("a", 2), ("b", 2)]

    asyncio.run(main())
