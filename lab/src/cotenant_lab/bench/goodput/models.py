"""Models of bench `goodput`: three networks with random weights, written as ONNX.

Their shapes are those of ResNet-18, of a MobileNet and of a small transformer encoder. The inputs are small (images of
64 or 128 pixels per side, 48 tokens), so that a request takes a few milliseconds of one core and about the same time
for each model: if one model cost ten times as much as another, the number of answers would mostly depend on which was
served.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cotenant.serve.load.request import InferenceRequest, InputTensor, content
from cotenant.serve.model.tensor import Datatype, TensorSpec

_OPSET: Final = 17
_IR: Final = 8
MAX_BATCH: Final = 8
"""The default maximum batch of the servers."""


class BenchModel(msgspec.Struct, frozen=True):
    """A model as its clients use it: one row of each input."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]

    def request(self) -> InferenceRequest:
        """Return a request of one row."""
        tensors = tuple(InputTensor(spec, content(spec.datatype, spec.shape)) for spec in self.inputs)
        return InferenceRequest(self.name, tensors, self.outputs)


class _Net:
    """An ONNX graph under construction."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def weight(self, *shape: int) -> str:
        """Add random weights whose variance keeps the scale of activations constant from layer to layer."""
        variance = 2 / int(np.prod(shape[1:])) if len(shape) > 2 else 1 / shape[0]
        return self.constant((self._rng.standard_normal(shape) * np.sqrt(variance)).astype(np.float32))

    def constant(self, array: Any) -> str:
        from onnx import numpy_helper  # noqa: PLC0415  only the bench makes models

        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add one operation and return the name of its output."""
        from onnx import helper  # noqa: PLC0415  see constant()

        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, channels: tuple[int, int], size: int, stride: int = 1, *, groups: int = 1) -> str:
        """Add a convolution with bias, into which a normalisation would be folded."""
        weight = self.weight(channels[1], channels[0] // groups, size, size)
        bias = self.constant(np.zeros(channels[1], np.float32))
        side = {"kernel_shape": [size, size], "strides": [stride, stride], "pads": [size // 2] * 4}
        return self.add("Conv", x, weight, bias, group=groups, **side)

    def dense(self, x: str, width_in: int, width_out: int) -> str:
        product = self.add("MatMul", x, self.weight(width_in, width_out))
        return self.add("Add", product, self.constant(np.zeros(width_out, np.float32)))

    def save(self, path: Path, input_spec: TensorSpec, output: str, width: int) -> None:
        from onnx import TensorProto, helper, save  # noqa: PLC0415  see constant()

        kinds = {Datatype.FP32: TensorProto.FLOAT, Datatype.INT64: TensorProto.INT64}
        inputs = [
            helper.make_tensor_value_info(input_spec.name, kinds[input_spec.datatype], ["N", *input_spec.shape[1:]])
        ]
        outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", width])]
        self._nodes.append(helper.make_node("Identity", [output], ["scores"]))
        graph = helper.make_graph(self._nodes, path.stem, inputs, outputs, self._weights)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR), str(path))


def make_models(folder: Path, *, small: bool = False) -> tuple[BenchModel, ...]:
    """Write all models; small ones take a tenth of the time, for tests of the bench itself."""
    return (
        _resnet(folder / "resnet.onnx", 32 if small else 64, (16, 32) if small else (64, 128, 256, 512)),
        _mobilenet(folder / "mobilenet.onnx", 32 if small else 128, 3 if small else 13),
        _transformer(folder / "transformer.onnx", 16 if small else 48, 64 if small else 256, 1 if small else 4),
    )


def _image(side: int) -> TensorSpec:
    return TensorSpec("image", Datatype.FP32, (1, 3, side, side))


def _with_classifier(net: _Net, x: str, channels: int, path: Path, input_spec: TensorSpec) -> BenchModel:
    flat = net.add("Flatten", net.add("GlobalAveragePool", x))
    net.save(path, input_spec, net.dense(flat, channels, 100), 100)
    return BenchModel(path.stem, (input_spec,), ("scores",))


def _resnet(path: Path, side: int, stages: Sequence[int]) -> BenchModel:
    """Write a network with two blocks of two convolutions in each of four stages, as ResNet-18 has them."""
    net, input_spec = _Net(1), _image(side)
    x = net.add("Relu", net.conv(input_spec.name, (3, stages[0]), 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = stages[0]
    for number, channels in enumerate(stages):
        for block in range(2):
            stride = 2 if number and not block else 1
            inner = net.add("Relu", net.conv(x, (before, channels), 3, stride))
            inner = net.conv(inner, (channels, channels), 3)
            past = x if stride == 1 and before == channels else net.conv(x, (before, channels), 1, stride)
            x = net.add("Relu", net.add("Add", inner, past))
            before = channels
    return _with_classifier(net, x, before, path, input_spec)


def _mobilenet(path: Path, side: int, blocks: int) -> BenchModel:
    """Write a network of depthwise and pointwise convolutions in turn, as MobileNet v1."""
    net, input_spec = _Net(2), _image(side)
    x = net.add("Relu", net.conv(input_spec.name, (3, 32), 3, 2))
    before = 32
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    for channels, stride in plan[:blocks]:
        x = net.add("Relu", net.conv(x, (before, before), 3, stride, groups=before))
        x = net.add("Relu", net.conv(x, (before, channels), 1))
        before = channels
    return _with_classifier(net, x, before, path, input_spec)


def _transformer(path: Path, tokens: int, width: int, layers: int) -> BenchModel:
    """Write an encoder: attention with heads of width 64, then a layer four times as wide."""
    net, input_spec = _Net(3), TensorSpec("tokens", Datatype.INT64, (1, tokens))
    heads = width // 64
    x = net.add("Gather", net.weight(1000, width), input_spec.name)
    x = net.add("Add", x, net.weight(tokens, width))
    split = net.constant(np.array([0, tokens, heads, 64], np.int64))
    joined = net.constant(np.array([0, tokens, width], np.int64))
    scale = net.constant(np.float32(1 / 8))

    def normal(y: str) -> str:
        ones, zeros = net.constant(np.ones(width, np.float32)), net.constant(np.zeros(width, np.float32))
        return net.add("LayerNormalization", y, ones, zeros, axis=-1)

    for _ in range(layers):
        parts = [net.add("Reshape", net.dense(x, width, width), split) for _ in range(3)]
        q, v = (net.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (parts[0], parts[2]))
        k = net.add("Transpose", parts[1], perm=[0, 2, 3, 1])
        weights = net.add("Softmax", net.add("Mul", net.add("MatMul", q, k), scale), axis=-1)
        mixed = net.add("Transpose", net.add("MatMul", weights, v), perm=[0, 2, 1, 3])
        attended = net.dense(net.add("Reshape", mixed, joined), width, width)
        x = normal(net.add("Add", x, attended))
        inner = net.add("Relu", net.dense(x, width, 4 * width))
        x = normal(net.add("Add", x, net.dense(inner, 4 * width, width)))
    mean = net.add("ReduceMean", x, axes=[1], keepdims=0)
    net.save(path, input_spec, net.dense(mean, width, 100), 100)
    return BenchModel(path.stem, (input_spec,), ("scores",))
