"""ONNX graphs with functions, branches, loops, quantized operators and attention: which kernels they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from cotenant.errors import ConfigError
from cotenant.profile.estimate.devices import find_gpu
from cotenant.profile.estimate.kernels import Precision
from cotenant.profile.estimate.onnx_operators import ModelOperators, onnx_operators
from cotenant.profile.estimate.operator import Family, Operator
from cotenant.profile.estimate.stream import StreamOptions, estimate_stream

FLOAT = TensorProto.FLOAT
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)]


def info(name: str, shape: list[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.ones(shape, np.float32) / 10, name)


def number(name: str, value: Any, kind: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.asarray(value, dtype=kind), name)


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], **more: Any
) -> Path:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=8, **more), str(path))
    return path


def shape_of_run(path: Path, feed: dict[str, Any], output: str) -> tuple[int, ...]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return tuple(session.run([output], feed)[0].shape)


def products(model: ModelOperators) -> list[Operator]:
    return [operator for operator in model.operators if operator.gemm is not None]


def shapes_are_known(model: ModelOperators) -> bool:
    return all(operator.family is not Family.UNSUPPORTED for operator in model.operators)


@pytest.fixture
def function_model(tmp_path: Path) -> Path:
    """A layer as a function that is called twice, and calls another one with an attribute."""
    domain = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    scaled = helper.make_node("LeakyRelu", ["a"], ["b"])
    scaled.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    activation = helper.make_function("own", "Act", ["a"], ["b"], [scaled], domain, ["slope"])
    body = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Act", ["p"], ["y"], domain="own", slope=0.2),
    ]
    layer = helper.make_function("own", "Layer", ["x", "w"], ["y"], body, domain)
    nodes = [
        helper.make_node("Layer", ["x", "w1"], ["h"], domain="own", name="first"),
        helper.make_node("Layer", ["h", "w2"], ["y"], domain="own", name="second"),
    ]
    return save(
        tmp_path / "functions.onnx",
        nodes,
        [info("x", ["N", 32])],
        [info("y", ["N", 16])],
        [weight("w1", 32, 64), weight("w2", 64, 16)],
        functions=[layer, activation],
    )


def test_functions_are_replaced_by_their_nodes(function_model: Path) -> None:
    model = onnx_operators(function_model, 5, {})
    assert [operator.type for operator in model.operators] == ["MatMul", "LeakyRelu"] * 2
    assert [operator.gemm.flops for operator in products(model) if operator.gemm] == [2 * 5 * 32 * 64, 2 * 5 * 64 * 16]
    assert model.output_bytes == 5 * 16 * 4
    assert shape_of_run(function_model, {"x": np.ones((5, 32), np.float32)}, "y") == (5, 16)
    assert len({name for operator in model.operators for name in operator.outputs}) == 4, "names of calls are apart"


def branch(name: str, width: int) -> Any:
    node = helper.make_node("MatMul", ["x", f"w{width}"], [f"{name}_p"])
    back = helper.make_node("ReduceSum", [f"{name}_p"], [f"{name}_y"], keepdims=0)
    return helper.make_graph([node, back], name, [], [info(f"{name}_y", [])])


def if_model(path: Path, condition: list[Any]) -> Path:
    nodes = [
        *condition,
        helper.make_node("If", ["c"], ["y"], then_branch=branch("small", 8), else_branch=branch("large", 512)),
    ]
    constants = [weight("w8", 32, 8), weight("w512", 32, 512), number("axis", 0), number("limit", 4)]
    return save(path, nodes, [info("x", ["N", 32])], [info("y", [])], constants)


def test_the_branch_is_that_of_the_batch_where_shapes_decide(tmp_path: Path) -> None:
    condition = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "axis"], ["n"]),
        helper.make_node("Less", ["n", "limit"], ["c"]),
    ]
    path = if_model(tmp_path / "if.onnx", condition)
    for batch, columns in ((2, 8), (6, 512)):
        model = onnx_operators(path, batch, {})
        (product,) = products(model)
        assert product.gemm is not None
        assert (product.gemm.m, product.gemm.n) == (batch, columns)
        assert model.notes == ()


def test_the_larger_branch_counts_where_data_decides_and_a_note_says_so(tmp_path: Path) -> None:
    condition = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
    ]
    model = onnx_operators(if_model(tmp_path / "if.onnx", condition), 2, {})
    (product,) = products(model)
    assert product.gemm is not None
    assert product.gemm.n == 512
    assert "which branch runs depends on data" in model.notes[0]


def loop_model(path: Path, trip: list[Any], *, decides: bool = False) -> Path:
    """A loop whose state is multiplied in each iteration, and whose results are stacked."""
    nodes = [
        helper.make_node("MatMul", ["state", "w"], ["next"]),
        helper.make_node("Identity", ["next"], ["item"]),
        helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["by_data"], to=TensorProto.BOOL),
        helper.make_node("Identity", ["by_data" if decides else "go"], ["go_on"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("state", ["N", 16])],
        [info("go_on", [], TensorProto.BOOL), info("next", ["N", 16]), info("item", ["N", 16])],
    )
    loop = helper.make_node("Loop", ["m", "yes", "x"], ["last", "all"], body=body, name="repeat")
    constants = [weight("w", 16, 16), number("yes", True, np.bool_), number("axis", 0)]
    return save(path, [*trip, loop], [info("x", ["N", 16])], [info("last", ["N", 16]), info("all", None)], constants)


def test_a_loop_runs_as_often_as_the_graph_says(tmp_path: Path) -> None:
    path = loop_model(tmp_path / "loop.onnx", [helper.make_node("Constant", [], ["m"], value_int=7)])
    model = onnx_operators(path, 3, {})
    assert len(products(model)) == 7
    assert model.notes == ()
    assert shapes_are_known(model)
    assert shape_of_run(path, {"x": np.ones((3, 16), np.float32)}, "all") == (7, 3, 16)
    assert model.output_bytes == (1 + 7) * 3 * 16 * 4
    assert model.weight_bytes == 16 * 16 * 4 + 1 + 8


def test_a_loop_over_the_batch_runs_once_for_each_item(tmp_path: Path) -> None:
    trip = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "axis"], ["m"])]
    path = loop_model(tmp_path / "loop.onnx", trip)
    assert len(products(onnx_operators(path, 4, {}))) == 4


def test_a_loop_that_data_ends_needs_a_number(tmp_path: Path) -> None:
    endless = [helper.make_node("Constant", [], ["m"], value_int=2**63 - 1)]
    path = loop_model(tmp_path / "loop.onnx", endless, decides=True)
    with pytest.raises(ConfigError, match=r"how often the loop runs depends on data; give it as --dim repeat=20"):
        onnx_operators(path, 1, {})
    assert len(products(onnx_operators(path, 1, {"repeat": 9}))) == 9
    bounded = loop_model(
        tmp_path / "bounded.onnx", [helper.make_node("Constant", [], ["m"], value_int=5)], decides=True
    )
    model = onnx_operators(bounded, 1, {})
    assert len(products(model)) == 5
    assert "at most 5 times" in model.notes[0]


def test_a_loop_without_end_is_refused(tmp_path: Path) -> None:
    path = loop_model(tmp_path / "loop.onnx", [helper.make_node("Constant", [], ["m"], value_int=10**8)])
    with pytest.raises(ConfigError, match="runs more than 100,000 operators"):
        onnx_operators(path, 1, {})


def test_a_scan_runs_once_for_each_item_of_its_series(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["s", "w"], ["p"]), helper.make_node("Add", ["p", "item"], ["t"])]
    nodes.append(helper.make_node("Identity", ["t"], ["u"]))
    body = helper.make_graph(
        nodes, "body", [info("s", ["N", 16]), info("item", ["N", 16])], [info("t", ["N", 16]), info("u", ["N", 16])]
    )
    scan = helper.make_node("Scan", ["x", "series"], ["last", "all"], body=body, num_scan_inputs=1)
    inputs = [info("x", ["N", 16]), info("series", ["steps", "N", 16])]
    path = save(
        tmp_path / "scan.onnx", [scan], inputs, [info("last", ["N", 16]), info("all", None)], [weight("w", 16, 16)]
    )
    model = onnx_operators(path, 2, {"steps": 11})
    assert [operator.type for operator in model.operators].count("Add") == 11
    assert shapes_are_known(model)
    feed = {"x": np.ones((2, 16), np.float32), "series": np.ones((11, 2, 16), np.float32)}
    assert shape_of_run(path, feed, "all") == (11, 2, 16)


def test_a_tensor_that_nothing_writes_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["ghost", "w"], ["y"], name="product")]
    path = save(tmp_path / "ghost.onnx", nodes, [info("x", ["N", 16])], [info("y", None)], [weight("w", 16, 16)])
    with pytest.raises(ConfigError, match="the node 'product' reads 'ghost'"):
        onnx_operators(path, 1, {})


def test_a_model_without_a_kernel_is_refused(tmp_path: Path) -> None:
    path = save(
        tmp_path / "view.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [info("x", ["N", 4])],
        [info("y", None)],
        [],
    )
    with pytest.raises(ConfigError, match="none of its operators launches a kernel"):
        onnx_operators(path, 1, {})


def test_shapes_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "odd.onnx", nodes, [info("x", ["N", 7])], [info("y", None)], [weight("w", 16, 16)])
    stream = estimate_stream("odd", onnx_operators(path, 1, {}), find_gpu("a100"), StreamOptions())
    [remark] = stream.remarks
    assert remark.startswith("1 x MatMul cannot be estimated (the inner sides of the product differ: 7 and 16): its")


@pytest.mark.parametrize(
    "shapes, batch, expected, noted",
    [
        ([["seq", "N", 8]], 3, [(5, 3, 8)], False),
        ([["boxes", 8], ["batch_size", 3, 8, 8]], 3, [(5, 8), (3, 3, 8, 8)], False),
        ([[64, 8]], 16, [(16, 8)], True),
        ([[100, 8], [1, 3, 8, 8]], 4, [(100, 8), (4, 3, 8, 8)], False),
        ([[100, 8], [None, 3, 8, 8]], 4, [(100, 8), (4, 3, 8, 8)], False),
        ([[100, 8], [50, 8]], 4, [(100, 8), (50, 8)], True),
    ],
)
def test_the_batch_is_found_by_its_name_or_place(
    tmp_path: Path, shapes: list[list[Any]], batch: int, expected: list[tuple[int, ...]], noted: bool
) -> None:
    inputs = [info(f"x{index}", shape) for index, shape in enumerate(shapes)]
    nodes = [helper.make_node("Relu", [f"x{index}"], [f"y{index}"]) for index in range(len(shapes))]
    path = save(tmp_path / "batch.onnx", nodes, inputs, [info("y0", None)], [])
    model = onnx_operators(path, batch, {"seq": 5, "boxes": 5})
    assert [operator.elements for operator in model.operators] == [int(np.prod(shape)) for shape in expected]
    assert bool(model.notes) == noted


def test_all_open_sizes_are_named_at_once(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = save(tmp_path / "open.onnx", [node], [info("x", ["N", 3, "height", None])], [info("y", None)], [])
    with pytest.raises(ConfigError, match=r"give them as in --dim height=128 --dim x\.3=128"):
        onnx_operators(path, 1, {})


@pytest.fixture
def quantized_model(tmp_path: Path) -> Path:
    """A convolution between QuantizeLinear and DequantizeLinear, with int8 weights."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["f"]),
        helper.make_node("Conv", ["d", "f"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "scale", "zero"], ["y"]),
    ]
    constants = [
        number("scale", 0.1, np.float32),
        number("zero", 0, np.int8),
        numpy_helper.from_array(np.ones((32, 32, 3, 3), np.int8), "w"),
    ]
    return save(tmp_path / "q.onnx", nodes, [info("x", ["N", 32, 28, 28])], [info("y", None)], constants)


def test_quantized_models_run_as_floats_one_by_one_and_as_int8_when_compiled(quantized_model: Path) -> None:
    model = onnx_operators(quantized_model, 2, {})
    assert shapes_are_known(model)
    assert model.is_quantized
    found = {}
    for mode in ("eager", "fused"):
        stream = estimate_stream("q", model, find_gpu("a100"), StreamOptions(mode=mode))
        found[mode] = {kernel.work.precision for kernel in stream.kernels if kernel.work.gemm is not None}
    assert found == {"eager": {Precision.TF32}, "fused": {Precision.INT8}}
    assert products(model)[0].weight_bytes == 32 * 32 * 9 * 4


def test_dynamic_quantization_of_onnxruntime_is_known(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    path = save(tmp_path / "float.onnx", nodes, [info("x", ["N", 64])], [info("y", ["N", 64])], [weight("w", 64, 64)])
    quantize_dynamic(str(path), str(tmp_path / "int8.onnx"))
    model = onnx_operators(tmp_path / "int8.onnx", 4, {})
    assert shapes_are_known(model)
    assert [operator.gemm.flops for operator in products(model) if operator.gemm] == [2 * 4 * 64 * 64]


def attention_node(kind: str, domain: str, **attributes: Any) -> Any:
    return helper.make_node(kind, ["q", "k", "v"], ["y"], domain=domain, **attributes)


@pytest.mark.parametrize(
    "node, key_width",
    [
        (attention_node("MultiHeadAttention", "com.microsoft", num_heads=4), 64),
        (attention_node("GroupQueryAttention", "com.microsoft", num_heads=4, kv_num_heads=2), 32),
        (attention_node("Attention", "", q_num_heads=4, kv_num_heads=4), 64),
    ],
)
def test_attention_counts_both_of_its_products(tmp_path: Path, node: Any, key_width: int) -> None:
    inputs = [info("q", ["N", 10, 64]), info("k", ["N", 10, key_width]), info("v", ["N", 10, key_width])]
    model = onnx_operators(save(tmp_path / "a.onnx", [node], inputs, [info("y", None)], []), 3, {})
    (operator,) = model.operators
    assert operator.family is Family.MATMUL
    assert operator.flops == 2 * 2 * 3 * 4 * 10 * 10 * 16
    assert operator.elements == 3 * 10 * 64


def test_packed_weights_count_with_their_own_size(tmp_path: Path) -> None:
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=256, N=128, bits=4, block_size=32
    )
    packed = numpy_helper.from_array(np.zeros((128, 8, 16), np.uint8), "w")
    path = save(tmp_path / "n.onnx", [node], [info("x", ["N", 256])], [info("y", None)], [packed, weight("s", 128 * 8)])
    model = onnx_operators(path, 2, {})
    (operator,) = model.operators
    assert operator.flops == 2 * 2 * 256 * 128
    assert operator.weight_bytes == 128 * 8 * 16 + 128 * 8 * 4
    assert model.precision == "float32"
