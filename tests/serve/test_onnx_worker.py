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


def test_a_batch_goes_through_bound_tensors(tmp_path: Path) -> None:
    add_and_subtract(tmp_path / "both.onnx")
    act = OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "both.onnx"), 0), HOST)
    assert [one.name for one in (*act.inputs, *act.outputs)] == ["A", "B", "SUM", "DIFFERENCE"]
    inputs_memory, outputs_memory = TensorMemory(), TensorMemory()
    for rows in (2, 3):
        a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
        laid, descriptor = write_tensors(act.inputs, [[a, a[: rows - 2]], [b, b[: rows - 2]]], inputs_memory)
        assert (descriptor >= 0) == (rows == 2)  # sufficient memory is reused
        took_ns, tensors, _ = act.run(
            RunBatch(1, rows, 0, laid, ("A", "B"), ("SUM", "DIFFERENCE")), inputs_memory, outputs_memory
        )
        assert took_ns > 0
        tensor = [outputs_memory.tensor(one) for one in tensors]
        whole = np.concatenate([a, a[: rows - 2]])
        assert np.array_equal(tensor[0], whole + 1)
        assert np.array_equal(tensor[1], whole - 1)
    act.check()


def test_tensors_are_bound_by_name_in_the_order_of_a_config(tmp_path: Path) -> None:
    """A configuration may list inputs in another order, and only some of the outputs."""
    add_and_subtract(tmp_path / "both.onnx")
    act = OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "both.onnx"), 0), HOST)
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    for wanted, expected in ((("DIFFERENCE",), [2]), (("DIFFERENCE", "SUM"), [2, 8]), (("SUM",), [8])):
        inputs_memory, outputs_memory = TensorMemory(), TensorMemory()
        laid, _ = write_tensors(act.inputs[::-1], [[b], [a]], inputs_memory)
        _, tensors, _ = act.run(RunBatch(1, 2, 0, laid, ("B", "A"), wanted), inputs_memory, outputs_memory)
        assert [outputs_memory.tensor(one)[0, 0] for one in tensors] == expected


@pytest.mark.parametrize("datatype", [Datatype.BYTES, Datatype.BF16])
def test_what_cannot_be_bound_is_refused_by_name(tmp_path: Path, datatype: Datatype) -> None:
    identity(tmp_path / "odd.onnx", datatype.value)
    with pytest.raises(ValueError, match=f"'IN' is {datatype.value}, which is supported on cores only"):
        OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "odd.onnx"), 0), HOST)


def test_without_the_provider_it_says_what_to_install(tmp_path: Path) -> None:
    identity(tmp_path / "one.onnx", "FP32")
    with pytest.raises(ValueError, match=r"has no CUDAExecutionProvider here.*install onnxruntime-gpu"):
        OnnxExecutor(WorkerSetup("onnx-cuda", str(tmp_path / "one.onnx"), 1 << 30))
