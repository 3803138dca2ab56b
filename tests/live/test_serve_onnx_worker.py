"""Does a worker of ONNX models do what it is told, as far as that can be seen without a GPU?

Its binding is done by the provider of the CPU here: the same calls, with tensors bound on the host.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cotenant.domain.tensor import Datatype
from cotenant.live.serve.parcel import Do, Room, Setup, lay_out
from cotenant.live.serve.worker_onnx import OnnxAct, Target
from tests.live.servers import add_and_subtract, identity

HOST = Target("CPUExecutionProvider", "cpu", {})


def test_a_batch_goes_through_bound_tensors(tmp_path: Path) -> None:
    add_and_subtract(tmp_path / "both.onnx")
    act = OnnxAct(Setup("onnx-cuda", str(tmp_path / "both.onnx"), 0), HOST)
    assert [one.name for one in (*act.inputs, *act.outputs)] == ["A", "B", "SUM", "DIFFERENCE"]
    given, made = Room(), Room()
    for rows in (2, 3):
        a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
        laid, descriptor = lay_out(act.inputs, [[a, a[: rows - 2]], [b, b[: rows - 2]]], given)
        assert (descriptor >= 0) == (rows == 2)  # what is large enough is used again
        took_ns, tensors, _ = act.run(Do(1, rows, 0, laid, ("A", "B"), ("SUM", "DIFFERENCE")), given, made)
        assert took_ns > 0
        seen = [made.seen(one) for one in tensors]
        whole = np.concatenate([a, a[: rows - 2]])
        assert np.array_equal(seen[0], whole + 1)
        assert np.array_equal(seen[1], whole - 1)
    act.check()


def test_tensors_are_bound_by_name_in_the_order_of_a_config(tmp_path: Path) -> None:
    """A config may name inputs in an order of its own, and some of the outputs."""
    add_and_subtract(tmp_path / "both.onnx")
    act = OnnxAct(Setup("onnx-cuda", str(tmp_path / "both.onnx"), 0), HOST)
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    for wanted, expected in ((("DIFFERENCE",), [2]), (("DIFFERENCE", "SUM"), [2, 8]), (("SUM",), [8])):
        given, made = Room(), Room()
        laid, _ = lay_out(act.inputs[::-1], [[b], [a]], given)
        _, tensors, _ = act.run(Do(1, 2, 0, laid, ("B", "A"), wanted), given, made)
        assert [made.seen(one)[0, 0] for one in tensors] == expected


@pytest.mark.parametrize("datatype", [Datatype.BYTES, Datatype.BF16])
def test_what_cannot_be_bound_is_refused_by_name(tmp_path: Path, datatype: Datatype) -> None:
    identity(tmp_path / "odd.onnx", datatype.value)
    with pytest.raises(ValueError, match=f"'IN' is {datatype.value}, which is served on cores only"):
        OnnxAct(Setup("onnx-cuda", str(tmp_path / "odd.onnx"), 0), HOST)


def test_without_the_provider_it_says_what_to_install(tmp_path: Path) -> None:
    identity(tmp_path / "one.onnx", "FP32")
    with pytest.raises(ValueError, match=r"has no CUDAExecutionProvider here.*install onnxruntime-gpu"):
        OnnxAct(Setup("onnx-cuda", str(tmp_path / "one.onnx"), 1 << 30))
