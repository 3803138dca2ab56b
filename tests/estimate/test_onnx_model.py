"""ONNX files: the reader and the shape inference against the onnx package and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from cotenant.errors import ConfigError
from cotenant.profile.estimate.onnx_file import read_onnx
from cotenant.profile.estimate.onnx_operators import onnx_operators
from cotenant.profile.estimate.operator import Family
from cotenant.profile.estimate.shapes import infer_shapes
from cotenant_lab.bench.goodput.models import make_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder, small=True)
    return folder


def save(path: Path, nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, Any], output: str) -> Path:
    """Write a model with float inputs."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "transformer"])
@pytest.mark.parametrize("batch", [1, 3])
def test_shapes_are_those_that_onnxruntime_computes(models: Path, name: str, batch: int) -> None:
    path = models / f"{name}.onnx"
    rows = infer_shapes(read_onnx(path), batch, {}, name).rows
    shapes = {
        output: tensor.shape for row in rows for output, tensor in zip(row.node.outputs, row.outputs, strict=True)
    }
    assert all(row.known for row in rows)
    model = onnx.load(str(path))
    names = [output for node in model.graph.node for output in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=output) for output in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {}
    for value in session.get_inputs():
        shape = [batch if isinstance(side, str) else side for side in value.shape]
        kind = np.int64 if value.type == "tensor(int64)" else np.float32
        feed[value.name] = np.zeros(shape, kind)
    results = session.run(names, feed)
    assert {output: tuple(result.shape) for output, result in zip(names, results, strict=True)} == shapes


def test_shapes_that_the_graph_computes_are_followed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Slice", ["flat", "starts", "ends", "one"], ["part"]),
        helper.make_node("Split", ["part"], ["left", "right"], axis=1),
        helper.make_node("Sub", ["left", "right"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axes": [0], "rest": [-1, 4], "starts": [0], "ends": [-2], "one": [1]}
    weights = {name: np.asarray(value, dtype=np.int64) for name, value in constants.items()}
    path = save(tmp_path / "shapes.onnx", nodes, {"x": ["N", 8, 8]}, weights, "y")
    rows = infer_shapes(read_onnx(path), 5, {}, "shapes").rows
    assert rows[4].outputs[0].shape == (5, 16, 4)
    assert rows[5].outputs[0].shape == (5, 14, 4)
    assert [output.shape for output in rows[6].outputs] == [(5, 7, 4), (5, 7, 4)]
    operators = onnx_operators(path, 5, {}).operators
    assert [
        operator.type for operator in operators if operator.family is Family.POINTWISE and not operator.host_only
    ] == ["Sub"]


def test_flops_and_bytes_of_a_convolution(tmp_path: Path) -> None:
    weight = np.zeros((16, 3, 3, 3), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    path = save(tmp_path / "conv.onnx", [node], {"x": ["N", 3, 32, 32]}, {"w": weight}, "y")
    (operator,) = onnx_operators(path, 4, {}).operators
    assert operator.flops == 2 * 4 * 16 * 16 * 16 * 3 * 9
    assert operator.read_bytes == 4 * 4 * 3 * 32 * 32
    assert operator.weight_bytes == weight.nbytes
    assert operator.written_bytes == 4 * 4 * 16 * 16 * 16


def test_operators_without_a_rule_are_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("SomethingNew", ["a"], ["b"], domain="vendor"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    path = save(tmp_path / "new.onnx", nodes, {"x": ["N", 64]}, {}, "y")
    operators = onnx_operators(path, 2, {}).operators
    assert [(operator.type, operator.family) for operator in operators] == [
        ("Relu", Family.POINTWISE),
        ("SomethingNew", Family.UNSUPPORTED),
        ("Relu", Family.POINTWISE),
    ]
    assert operators[1].moved_bytes == 2 * 4 * 2 * 64


def test_a_fixed_batch_is_scaled(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "to"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    weights = {"to": np.array([1, 64], np.int64)}
    path = save(tmp_path / "fixed.onnx", nodes, {"x": [1, 8, 8]}, weights, "y")
    rows = infer_shapes(read_onnx(path), 6, {}, "fixed").rows
    assert rows[-1].outputs[0].shape == (6, 64)


def test_an_open_dimension_must_be_given(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = save(tmp_path / "open.onnx", [node], {"x": ["N", "sequence"]}, {}, "y")
    with pytest.raises(ConfigError, match="sequence"):
        onnx_operators(path, 1, {})
    assert onnx_operators(path, 1, {"sequence": 12}).operators[0].elements == 12


@pytest.mark.parametrize("content", [b"", b"\x00", b"\xff" * 40, b"not a model", b"\x3a\x05\x0a\x03\x22\x01"])
def test_damaged_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"damaged\.onnx") as refused:
        onnx_operators(path, 1, {})
    assert "\n" not in str(refused.value)


def test_truncated_files_never_crash(models: Path, tmp_path: Path) -> None:
    content = (models / "transformer.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    for cut in range(1, len(content), len(content) // 60):
        path.write_bytes(content[:cut])
        with pytest.raises(ConfigError):
            onnx_operators(path, 1, {})
