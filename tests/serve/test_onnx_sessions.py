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
import onnx
from onnx import TensorProto, helper, numpy_helper

from cotenant.serve.model.event import ModelSpec, Run
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.runtime import onnx_files, onnx_sessions
from cotenant.serve.runtime.model import ModelLoadError
from cotenant.serve.runtime.onnx import OnnxModel
from cotenant.serve.runtime.onnx_files import remove_stale_weights
from cotenant.serve.runtime.onnx_sessions import UNSHARED, OnnxSessions
from cotenant.serve.runtime.runtime import CpuRuntime
from cotenant.serve.runtime.threads import UNSHARED_LIMIT, CoreThreads, Job, RunResult
from tests.support.model_servers import save

pytestmark = pytest.mark.live

SIDE = 2048
CORES = tuple(sorted(os.sched_getaffinity(0)))
NEEDS_TWO_CORES = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


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
    path = tmp_path_factory.mktemp("sessions") / "product.onnx"
    save(path, graph)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the directory of the written weights."""
    monkeypatch.setattr(onnx_files, "_weights_root", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def sessions(path: Path, home: Path) -> Iterator[OnnxSessions]:
    sessions = OnnxSessions(path, CORES)
    yield sessions
    sessions.close()


def run(session: Any, rows: int) -> Any:
    return session.run(None, {"X": np.linspace(-1, 1, rows * SIDE, dtype=np.float32).reshape(rows, SIDE)})[0]


def anonymous_kib() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:"))


@NEEDS_TWO_CORES
def test_sessions_of_all_widths_agree_and_share_weights(sessions: OnnxSessions, home: Path) -> None:
    expected = [run(sessions.alone, rows) for rows in (1, 5)]
    sessions.prepare((1, 2, UNSHARED))
    previous_kib = anonymous_kib()
    for cores in (CORES[:1], CORES[:2], CORES[1::-1], ()):
        for rows, output in zip((1, 5), expected, strict=True):
            with sessions.on(cores) as session:
                np.testing.assert_allclose(run(session, rows), output, rtol=1e-4, atol=1e-3)
    with sessions.on(CORES[:2]), sessions.on(CORES[:2]) as second:  # two concurrent runs have a pool each
        run(second, 5)
    assert anonymous_kib() - previous_kib < SIDE * SIDE * 4 // 1024 // 2
    (folder,) = home.iterdir()
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}
    assert mapped == {str(folder / "weights")}


@NEEDS_TWO_CORES
def test_pool_threads_are_pinned_to_the_cores_of_the_run(sessions: OnnxSessions) -> None:
    for cores in (CORES[:2], CORES[1::-1]):
        with sessions.on(cores):
            pass
        (pool,) = sessions._idle[2]
        assert len(pool.threads) == 1
        assert os.sched_getaffinity(pool.threads[0]) == {cores[1]}


@NEEDS_TWO_CORES
def test_weight_files_are_removed_on_close_and_when_stale(path: Path, home: Path) -> None:
    sessions = OnnxSessions(path, CORES)
    sessions.prepare((2,))
    stale = home / "cotenant-weights-of-the-dead"
    stale.mkdir()
    remove_stale_weights()
    (remaining,) = home.iterdir()  # the copy of the model was removed when the optimised one was written
    assert remaining != stale
    sessions.close()
    assert not list(home.iterdir())


@NEEDS_TWO_CORES
def test_model_that_cannot_be_written_runs_with_its_own_copies(
    sessions: OnnxSessions, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_sessions, "_writing_options", lambda folder: onnx_sessions._options(1))
    with sessions.on(CORES[:2]) as session:
        np.testing.assert_allclose(run(session, 2), run(sessions.alone, 2), rtol=1e-4, atol=1e-3)
    assert [path.name for path in home.glob("*/*")] == ["model.onnx"]  # the copy of the model


def test_unshared_runs_beyond_the_limit_wait_and_each_ends_once(sessions: OnnxSessions) -> None:
    inputs_spec, outputs_spec = ((TensorSpec(name, Datatype.FP32, (-1, SIDE)),) for name in ("X", "Y"))
    model = OnnxModel(ModelSpec("m", "1", "test", inputs_spec, outputs_spec, 8), sessions)
    results: list[RunResult] = []
    result_count = threading.Semaphore(0)

    def report(result: RunResult) -> None:
        results.append(result)
        result_count.release()

    workers = CoreThreads(CORES[:1], report, lambda number, answer: None)
    count = UNSHARED_LIMIT + 6
    inputs = [np.ones((1, SIDE), np.float32)]
    for number in range(1, count + 1):
        workers.submit(Job(Run(0, number, "m", 1, (number,), 1, 0, ()), model, [inputs], [1]))
    for _ in range(count):
        assert result_count.acquire(timeout=60)
    workers.stop()
    assert sorted(result.run.run for result in results) == list(range(1, count + 1))
    assert not [result.failure for result in results if result.failure]


def test_runtime_is_settled_only_after_sessions_are_open() -> None:
    may_open, opened_sessions = threading.Event(), []

    class Slow(OnnxModel):
        def __init__(self, name: str) -> None:
            self.name = name

        def prepare(self, widths: Sequence[int]) -> None:
            assert may_open.wait(60)
            opened_sessions.append((self.name, *widths))

    async def main() -> None:
        runtime = CpuRuntime(CORES)
        for name in ("a", "b"):
            runtime.prepare(Slow(name), (2,))
        settled = asyncio.ensure_future(runtime.settled())
        await asyncio.wait((settled,), timeout=0.05)
        assert not settled.done()
        may_open.set()
        await asyncio.wait_for(settled, 60)
        assert sorted(opened_sessions) == [("a", 2), ("b", 2)]

    asyncio.run(main())


def test_sessions_do_not_depend_on_the_files_of_the_model(home: Path, tmp_path: Path) -> None:
    """Weights that are truncated or overwritten change no loaded model; ONNX Runtime maps external weights."""
    folder = tmp_path / "external"
    folder.mkdir()
    weights = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) / SIDE
    nodes = [onnx.helper.make_node("MatMul", ["X", "W"], ["Y"])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", SIDE]) for name in "XY"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "W")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=9)
    path = folder / "external.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.data", size_threshold=0)
    assert onnx_files.external_files(path) == ["w.data"]
    sessions = OnnxSessions(path, CORES)
    expected = run(sessions.alone, 3)
    os.truncate(folder / "w.data", 0)
    path.write_bytes(b"no model")
    np.testing.assert_array_equal(run(sessions.alone, 3), expected)
    sessions.prepare((UNSHARED,))
    with sessions.on(()) as session:
        np.testing.assert_allclose(run(session, 3), expected, rtol=1e-4, atol=1e-3)
    sessions.close()
    with pytest.raises(ModelLoadError, match=r"external\.onnx"):
        OnnxSessions(path, CORES)


def test_weights_outside_of_the_directory_of_the_model_are_refused(tmp_path: Path) -> None:
    tensor = onnx.TensorProto(name="W", data_type=1, dims=[1], data_location="EXTERNAL")
    tensor.external_data.add(key="location", value="../secret")
    branch = onnx.GraphProto(name="b", initializer=[tensor])
    node = onnx.NodeProto(op_type="If")
    node.attribute.append(onnx.helper.make_attribute("then_branch", branch))
    (tmp_path / "m.onnx").write_bytes(onnx.ModelProto(graph=onnx.GraphProto(node=[node])).SerializeToString())
    with pytest.raises(ModelLoadError, match="not below the model's directory"):
        onnx_files.external_files(tmp_path / "m.onnx")
