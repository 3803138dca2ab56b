"""ONNX models on cores, run by ONNX Runtime in sessions whose threads are pinned to the cores of the run."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.tensor import NUMPY, Array
from cotenant.serve.runtime.model import ModelLoadError, QuickRunDetector, any_rank
from cotenant.serve.runtime.onnx_sessions import OnnxSessions
from cotenant.units.instant import Duration

PLATFORM: Final = "onnxruntime_onnx"
DEFAULT_BATCH: Final = 8
"""Batch size of a model that supports any number of rows, if none is configured. Our choice."""
_BFLOAT16: Final = 16
_NAMELESS: Final = re.compile(r"(unk__\d+|\?)?\Z")
"""Placeholder names that exporters write for unnamed dimensions."""
_LENGTHS: Final = frozenset(("seq", "sequence", "seq_len", "sequence_length", "length", "time", "num_tokens", "tokens"))
"""Names of a first dimension that is a sequence length, not a batch."""
_TYPES: Final = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(string)": Datatype.BYTES,
}


def tensor_specs(takes: Sequence[Any], gives: Sequence[Any]) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Convert ONNX Runtime's node arguments to tensor specs, with the shapes of the file."""
    sides = []
    for nodes in (takes, gives):
        specs = []
        for node in nodes:
            datatype = _TYPES.get(node.type)
            if datatype is None:
                raise ModelLoadError(f"tensor {node.name!r} is {node.type}, for which the protocol has no datatype")
            specs.append(TensorSpec(node.name, datatype, any_rank(node.shape)))
        sides.append(tuple(specs))
    return sides[0], sides[1]


def takes_batches(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the first dimension of every tensor is free."""
    return bool(inputs) and all(one.shape[:1] == (-1,) for one in (*inputs, *outputs))


def means_batches(takes: Sequence[Any], gives: Sequence[Any]) -> bool:
    """Return whether all tensors begin with the same free dimension and its name is not a length.

    For example, the number of boxes of a detection model is free as well, but rows of several requests would be mixed.
    """
    names = set()
    for node in (*takes, *gives):
        if any_rank(node.shape)[:1] != (-1,):
            return False
        name = node.shape[0]
        names.add(name.lower() if isinstance(name, str) and not _NAMELESS.match(name) else "")
    return bool(takes) and len(names) == 1 and not names & _LENGTHS


class OnnxModel:
    """An ONNX model of the CPU runtime."""

    def __init__(self, spec: ModelSpec, sessions: OnnxSessions) -> None:
        """The spec names the tensors of the sessions."""
        self.spec = spec
        self._sessions = sessions
        self._inputs = [one.name for one in spec.inputs]
        self._outputs = [one.name for one in spec.outputs]
        self._odd = any(one.datatype is Datatype.BF16 for one in (*spec.inputs, *spec.outputs))
        self._texts = [place for place, one in enumerate(spec.inputs) if one.datatype is Datatype.BYTES]
        pace = QuickRunDetector()
        self.is_quick = pace.is_quick
        self.took_at_once = pace.took_at_once
        self._pace = pace

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """Return the outputs for these inputs."""
        if cores is None:
            return self._run(self._sessions.alone, inputs)
        with self._sessions.on(cores) as session:
            return self._run(session, inputs)

    def prepare(self, widths: Sequence[int]) -> None:
        """Open the sessions for these widths (zero: all cores, shared); may take long."""
        self._sessions.prepare(widths)

    def _run(self, session: Any, inputs: Sequence[Array]) -> list[Array]:
        if self._texts:
            inputs = list(inputs)
            for place in self._texts:
                inputs[place] = _as_text(self._inputs[place], inputs[place])
        if self._odd:
            return self._run_odd(session, inputs)
        feed = dict(zip(self._inputs, inputs, strict=True))
        found: list[Array] = session.run(self._outputs, feed)
        return found

    def _run_odd(self, session: Any, inputs: Sequence[Array]) -> list[Array]:
        """Run with BF16 tensors, which numpy has no type for."""
        import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

        value = onnxruntime.OrtValue
        feed = {}
        for one, array in zip(self.spec.inputs, inputs, strict=True):
            whole = np.ascontiguousarray(array)
            bits = one.datatype is Datatype.BF16
            make = value.ortvalue_from_numpy_with_onnx_type
            feed[one.name] = make(whole, _BFLOAT16) if bits else value.ortvalue_from_numpy(whole)
        found = session.run_with_ort_values(self._outputs, feed)
        return [_array(one, tensor) for one, tensor in zip(self.spec.outputs, found, strict=True)]

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Yield the single response of an ONNX model."""
        yield self.run(inputs)

    def took(self, size_bytes: int, took_ns: Duration) -> None:
        """Record the time of a run."""
        self._pace.took(size_bytes, took_ns)

    def close(self) -> None:
        """Release the sessions after the last run."""
        self._sessions.close()


def _array(spec: TensorSpec, tensor: Any) -> Array:
    if spec.datatype is not Datatype.BF16:
        array: Array = tensor.numpy()
        return array
    raw = ctypes.string_at(tensor.data_ptr(), tensor.tensor_size_in_bytes())
    return np.frombuffer(raw, NUMPY[Datatype.BF16]).reshape(tensor.shape())


def _as_text(name: str, array: Array) -> Array:
    try:
        texts = [one.decode() for one in array.ravel()]
    except UnicodeDecodeError:
        raise ValueError(f"input {name!r}: an element is not UTF-8 text, as ONNX strings must be") from None
    return np.array(texts, np.object_).reshape(array.shape)
