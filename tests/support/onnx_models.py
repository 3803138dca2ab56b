"""ONNX models of tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_model(path: Path, *, width: int = 256, layers: int = 3, unknown: bool = False, side: str = "") -> Path:
    """Write a small perceptron; `unknown`: with an operator of a vendor that no rule covers; `side`: its open size."""
    nodes, weights, name = [], [], "x"
    for layer in range(layers):
        weight = np.zeros((width, width), np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"p{layer}"]))
        nodes.append(helper.make_node("Relu", [f"p{layer}"], [f"r{layer}"]))
        name = f"r{layer}"
    if unknown:
        nodes.append(helper.make_node("VendorThing", [name], ["v"], domain="vendor"))
        name = "v"
    nodes.append(helper.make_node("Identity", [name], ["y"]))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", side or width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path
