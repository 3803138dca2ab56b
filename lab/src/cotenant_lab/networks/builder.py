"""Builder of graphs as an exporter writes them: operators with shapes of weights, and no values of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from cotenant.profile.estimate.onnx_file import Constant, GraphValue, Model, Node

OPSET = 17


class NetworkBuilder:
    """A graph under construction. Every method adds operators and returns the name of the result."""

    def __init__(self) -> None:
        """Start with an empty graph."""
        self._nodes: list[Node] = []
        self._constants: dict[str, Constant] = {}
        self._inputs: list[GraphValue] = []
        self._channels: dict[str, int] = {}
        self.parameters = 0

    def input(self, name: str, *sides: int, kind: str = "float32") -> str:
        """Add an input; its first side is the batch."""
        self._inputs.append(GraphValue(name, kind, ("N", *sides)))
        if sides:
            self._channels[name] = sides[0]
        return name

    def weight(self, *shape: int, trained: bool = True) -> str:
        """Add a weight."""
        name = f"w{len(self._constants)}"
        self._constants[name] = Constant(tuple(shape), "float32")
        if trained:
            self.parameters += int(np.prod(shape, dtype=np.int64))
        return name

    def integers(self, *values: int) -> str:
        """Add a constant of integers."""
        name = f"i{len(self._constants)}"
        self._constants[name] = Constant((len(values),), "int64", np.asarray(values, dtype="int64"))
        return name

    def scalar(self, value: float) -> str:
        """Add a constant number."""
        name = f"s{len(self._constants)}"
        self._constants[name] = Constant((), "float32", np.asarray(value, dtype="float32"))
        return name

    def add(self, kind: str, *inputs: str, channels: int = 0, **attributes: Any) -> str:
        """Add one operator; `channels` of its result are those of its first input unless given."""
        name = f"t{len(self._nodes)}"
        self._nodes.append(Node(kind, f"{kind}_{len(self._nodes)}", inputs, (name,), attributes))
        self._channels[name] = channels or (self._channels.get(inputs[0], 0) if inputs else 0)
        return name

    def channels(self, name: str) -> int:
        """Return the channels of a tensor."""
        return self._channels[name]

    def conv(
        self, x: str, out: int, size: int | tuple[int, int] = 1, stride: int = 1, *,
        groups: int = 1, bias: bool = False, pad: int | tuple[int, int] | None = None, dilation: int = 1,
    ) -> str:  # fmt: skip
        """Add a convolution, padded to keep the size unless given."""
        height, width = (size, size) if isinstance(size, int) else size
        if pad is None:
            pad = ((height - 1) // 2 * dilation, (width - 1) // 2 * dilation)
        rows, columns = (pad, pad) if isinstance(pad, int) else pad
        weight = self.weight(out, self.channels(x) // groups, height, width)
        inputs = (x, weight, self.weight(out)) if bias else (x, weight)
        sides = {"kernel_shape": [height, width], "strides": [stride, stride], "dilations": [dilation, dilation]}
        return self.add("Conv", *inputs, channels=out, group=groups, pads=[rows, columns, rows, columns], **sides)

    def norm(self, x: str) -> str:
        """Add a batch normalization."""
        count = self.channels(x)
        statistics = (self.weight(count, trained=False), self.weight(count, trained=False))
        return self.add("BatchNormalization", x, self.weight(count), self.weight(count), *statistics)

    def unit(
        self, x: str, out: int, size: int | tuple[int, int] = 1, stride: int = 1, *,
        act: str = "Relu", groups: int = 1, pad: int | tuple[int, int] | None = None,
    ) -> str:  # fmt: skip
        """Add convolution, normalization and activation."""
        return self.act(self.norm(self.conv(x, out, size, stride, groups=groups, pad=pad)), act)

    def act(self, x: str, kind: str) -> str:
        """Add an activation; "SiLU" is one kernel in PyTorch and here; empty: none."""
        if not kind:
            return x
        return self.add("HardSwish" if kind == "SiLU" else kind, x)

    def pool(self, x: str, size: int, stride: int, pad: int = 0, *, kind: str = "MaxPool", ceil: bool = False) -> str:
        """Add pooling."""
        return self.add(
            kind, x, kernel_shape=[size, size], strides=[stride, stride], pads=[pad] * 4, ceil_mode=int(ceil)
        )

    def squeeze_excite(self, x: str, inner: int, act: str = "Relu", gate: str = "Sigmoid") -> str:
        """Add a gate per channel from the mean of each."""
        count = self.channels(x)
        y = self.add("GlobalAveragePool", x)
        y = self.act(self.conv(y, inner, bias=True), act)
        y = self.add(gate, self.conv(y, count, bias=True))
        return self.add("Mul", x, y)

    def linear(self, x: str, width_in: int, width_out: int, *, bias: bool = True) -> str:
        """Add a dense layer as one product with bias."""
        if not bias:
            return self.add("MatMul", x, self.weight(width_in, width_out), channels=width_out)
        # FusedMatMul: frameworks add the bias inside the product.
        return self.add("FusedMatMul", x, self.weight(width_in, width_out), self.weight(width_out), channels=width_out)

    def layer_norm(self, x: str, width: int) -> str:
        """Add a layer normalization over the last side."""
        return self.add("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)

    def classifier(self, x: str, classes: int = 1000) -> str:
        """Add the mean over the image and a dense layer."""
        count = self.channels(x)
        return self.linear(self.add("Flatten", self.add("GlobalAveragePool", x)), count, classes)

    def model(self, *outputs: str) -> Model:
        """Return the graph."""
        return Model(tuple(self._nodes), tuple(self._inputs), outputs, dict(self._constants), {}, OPSET)
