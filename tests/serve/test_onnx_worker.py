"""The ONNX executor of a worker, as far as it can be tested without a GPU.

Tensors are bound by the CPU provider: the same calls, with tensors on the host.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cotenant.serve.model.tensor import Datatype
from cotenant.serve.runtime.gpu.shared_tensors import RunBatch, TensorMemory, WorkerSetup, write_tensors
from cotenant.serve.runtime.gpu.worker_onnx import BindTarget, OnnxExecutor
from tests.support.model_servers import add_and_subtract, identity

pytestmark = pytest.mark.live

HOST = BindTarget("CPUExecutionProvider", "cpu", {})


def test_executor_runs_a_batch_with_bound_tensors(tmp_path: Path) -> None:
    add_and_subtract(tmp_path / "both.onnx")
    executor = OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "both.onnx"), 0), HOST)
    assert [spec.name for spec in (*executor.inputs, *executor.outputs)] == ["A", "B", "SUM", "DIFFERENCE"]
    inputs_memory, outputs_memory = TensorMemory(), TensorMemory()
    for rows in (2, 3):
        a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
        locations, descriptor = write_tensors(executor.inputs, [[a, a[: rows - 2]], [b, b[: rows - 2]]], inputs_memory)
        assert (descriptor >= 0) == (rows == 2)  # sufficient memory is reused
        took_ns, tensors, _ = executor.run(
            RunBatch(1, rows, 0, locations, ("A", "B"), ("SUM", "DIFFERENCE")), inputs_memory, outputs_memory
        )
        assert took_ns > 0
        results = [outputs_memory.tensor(location) for location in tensors]
        expected = np.concatenate([a, a[: rows - 2]])
        assert np.array_equal(results[0], expected + 1)
        assert np.array_equal(results[1], expected - 1)
    executor.check()


def test_tensors_are_bound_by_name_in_configured_order(tmp_path: Path) -> None:
    """A configuration may list inputs in another order, and only some of the outputs."""
    add_and_subtract(tmp_path / "both.onnx")
    executor = OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "both.onnx"), 0), HOST)
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    for output_names, expected in ((("DIFFERENCE",), [2]), (("DIFFERENCE", "SUM"), [2, 8]), (("SUM",), [8])):
        inputs_memory, outputs_memory = TensorMemory(), TensorMemory()
        locations, _ = write_tensors(executor.inputs[::-1], [[b], [a]], inputs_memory)
        _, tensors, _ = executor.run(
            RunBatch(1, 2, 0, locations, ("B", "A"), output_names), inputs_memory, outputs_memory
        )
        assert [outputs_memory.tensor(location)[0, 0] for location in tensors] == expected


@pytest.mark.parametrize("datatype", [Datatype.BYTES, Datatype.BF16])
def test_unsupported_datatype_is_rejected_with_tensor_name(tmp_path: Path, datatype: Datatype) -> None:
    identity(tmp_path / "odd.onnx", datatype.value)
    with pytest.raises(ValueError, match=f"'IN' is {datatype.value}, which is supported on cores only"):
        OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "odd.onnx"), 0), HOST)


def test_missing_provider_error_names_the_package(tmp_path: Path) -> None:
    identity(tmp_path / "one.onnx", "FP32")
    with pytest.raises(ValueError, match=r"has no CUDAExecutionProvider here.*install onnxruntime-gpu"):
        OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "one.onnx"), 1 << 30))
