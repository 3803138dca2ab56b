"""Encoders and decoders as PyTorch runs them eagerly: the operators of the Hugging Face implementations."""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.profile.estimate.onnx_file import Model
from cotenant_lab.networks.builder import NetworkBuilder


class TransformerShape(msgspec.Struct, frozen=True):
    """Sizes of a transformer."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    style: str
    """bert, gpt2 or opt: which operators surround the products."""


TRANSFORMERS: Final = {
    "bert_base": TransformerShape(12, 768, 12, 30522, "bert"),
    "bert_large": TransformerShape(24, 1024, 16, 30522, "bert"),
    "gpt2": TransformerShape(12, 768, 12, 50257, "gpt2"),
    "gpt2_large": TransformerShape(36, 1280, 20, 50257, "gpt2"),
    "gpt3_27": TransformerShape(32, 2560, 32, 50257, "gpt2"),
    "opt_13": TransformerShape(24, 2048, 32, 50272, "opt"),
}
"""Published sizes: Devlin et al. 2019, Radford et al. 2019, Brown et al. 2020 (table 2.1), Zhang et al. 2022."""


def transformer(name: str, tokens: int, *, head: bool = True) -> Model:
    """Return the graph of a transformer over sequences of this length; `head`: with the product over the vocabulary."""
    return _Transformer(TRANSFORMERS[name], tokens).build(head=head)


class _Transformer:
    """One graph under construction."""

    def __init__(self, shape: TransformerShape, tokens: int) -> None:
        self._shape, self._tokens = shape, tokens
        self._net = NetworkBuilder()

    def build(self, *, head: bool) -> Model:
        net, shape, tokens = self._net, self._shape, self._tokens
        ids = net.input("ids", tokens, kind="int64")
        x = net.add("Gather", net.weight(shape.vocabulary, shape.width), ids)
        if shape.style == "bert":
            x = net.add("Add", x, net.add("Gather", net.weight(2, shape.width), ids))
        x = net.add("Add", x, net.weight(1, tokens, shape.width))
        if shape.style == "bert":
            x = net.layer_norm(x, shape.width)
        for _ in range(shape.layers):
            x = self._layer(x)
        if shape.style != "bert":
            x = net.layer_norm(x, shape.width)
        elif head:
            x = net.layer_norm(net.add("Gelu", net.linear(x, shape.width, shape.width)), shape.width)
        if head:
            x = net.linear(x, shape.width, shape.vocabulary, bias=shape.style == "bert")
        return net.model(x)

    def _layer(self, x: str) -> str:
        net, width = self._net, self._shape.width
        if self._shape.style == "bert":
            x = net.layer_norm(net.add("Add", self._attention(x), x), width)
            inner = net.linear(net.add("Gelu", net.linear(x, width, 4 * width)), 4 * width, width)
            return net.layer_norm(net.add("Add", inner, x), width)
        x = net.add("Add", self._attention(net.layer_norm(x, width)), x)
        inner = net.linear(net.layer_norm(x, width), width, 4 * width)
        inner = net.add("Relu", inner) if self._shape.style == "opt" else self._gelu_parts(inner)
        return net.add("Add", net.linear(inner, 4 * width, width), x)

    def _gelu_parts(self, x: str) -> str:
        """Add GPT-2's activation, whose implementation is eight operators."""
        net = self._net
        half = net.add("Mul", x, net.scalar(0.5))
        inner = net.add("Mul", net.add("Pow", x, net.scalar(3.0)), net.scalar(0.044715))
        inner = net.add("Mul", net.add("Add", x, inner), net.scalar(0.7979))
        return net.add("Mul", half, net.add("Add", net.add("Tanh", inner), net.scalar(1.0)))

    def _attention(self, x: str) -> str:
        net, shape, tokens = self._net, self._shape, self._tokens
        side = shape.width // shape.heads
        heads = net.integers(0, tokens, shape.heads, side)
        if shape.style == "gpt2":
            packed = net.linear(x, shape.width, 3 * shape.width)
            parts = [
                net.add("Slice", packed, net.integers(index * shape.width), net.integers((index + 1) * shape.width),
                        net.integers(2))
                for index in range(3)
            ]  # fmt: skip
        else:
            parts = [net.linear(x, shape.width, shape.width) for _ in range(3)]
        if shape.style == "opt":
            parts[0] = net.add("Mul", parts[0], net.scalar(0.125))
        split = [net.add("Reshape", part, heads) for part in parts]
        if shape.style == "opt":
            split = [self._copied(part, tokens, side) for part in split]
            query, key, value = split[0], net.add("Transpose", split[1], perm=[0, 1, 3, 2]), split[2]
        else:
            query, value = (net.add("Transpose", split[index], perm=[0, 2, 1, 3]) for index in (0, 2))
            key = net.add("Transpose", split[1], perm=[0, 2, 3, 1])
        scores = net.add("MatMul", query, key)
        if shape.style != "opt":
            scores = net.add("Div", scores, net.scalar(8.0))
        if shape.style == "gpt2":
            scores = net.add("Where", net.weight(1, 1, tokens, tokens, trained=False), scores, net.scalar(-1e9))
        else:
            scores = net.add("Add", scores, net.weight(1, 1, tokens, tokens, trained=False))
        if shape.style == "opt":
            scores = net.add("Max", scores, net.scalar(-1e9))
        mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), value)
        joined = net.add("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = net.add("Reshape", joined, net.integers(0, tokens, shape.width))
        return net.linear(joined, shape.width, shape.width)

    def _copied(self, part: str, tokens: int, side: int) -> str:
        """Add a copy into the order of heads."""
        net = self._net
        turned = net.add("Transpose", part, perm=[0, 2, 1, 3])
        return net.add("Reshape", turned, net.integers(0, self._shape.heads, tokens, side))
