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
_UNNAMED: Final = re.compile(r"(unk__\d+|\?)?\Z")
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


def tensor_specs(
    inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Convert ONNX Runtime's node arguments to tensor specs, with the shapes of the file."""
    sides = []
    for nodes in (inputs, outputs):
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
    return bool(inputs) and all(spec.shape[:1] == (-1,) for spec in (*inputs, *outputs))


def means_batches(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Return whether all tensors begin with the same free dimension and its name is not a length.

    For example, the number of boxes of a detection model is free as well, but rows of several requests would be mixed.
    """
    names = set()
    for node in (*inputs, *outputs):
        if any_rank(node.shape)[:1] != (-1,):
            return False
        name = node.shape[0]
        names.add(name.lower() if isinstance(name, str) and not _UNNAMED.match(name) else "")
    return bool(inputs) and len(names) == 1 and not names & _LENGTHS


class OnnxModel:
    """An ONNX model of the CPU runtime."""

    def __init__(self, spec: ModelSpec, sessions: OnnxSessions) -> None:
        """The spec names the tensors of the sessions."""
        self.spec = spec
        self._sessions = sessions
        self._inputs = [tensor.name for tensor in spec.inputs]
        self._outputs = [tensor.name for tensor in spec.outputs]
        self._has_bf16 = any(tensor.datatype is Datatype.BF16 for tensor in (*spec.inputs, *spec.outputs))
        self._texts = [index for index, tensor in enumerate(spec.inputs) if tensor.datatype is Datatype.BYTES]
        quick_runs = QuickRunDetector()
        self.is_quick = quick_runs.is_quick
        self.record_inline_run = quick_runs.record_inline_run
        self._quick_runs = quick_runs

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
            for index in self._texts:
                inputs[index] = _as_text(self._inputs[index], inputs[index])
        if self._has_bf16:
            return self._run_bf16(session, inputs)
        feed = dict(zip(self._inputs, inputs, strict=True))
        outputs: list[Array] = session.run(self._outputs, feed)
        return outputs

    def _run_bf16(self, session: Any, inputs: Sequence[Array]) -> list[Array]:
        """Run with BF16 tensors, which numpy has no type for."""
        import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

        value = onnxruntime.OrtValue
        feed = {}
        for spec, array in zip(self.spec.inputs, inputs, strict=True):
            contiguous = np.ascontiguousarray(array)
            is_bf16 = spec.datatype is Datatype.BF16
            make = value.ortvalue_from_numpy_with_onnx_type
            feed[spec.name] = make(contiguous, _BFLOAT16) if is_bf16 else value.ortvalue_from_numpy(contiguous)
        values = session.run_with_ort_values(self._outputs, feed)
        return [_array(spec, tensor) for spec, tensor in zip(self.spec.outputs, values, strict=True)]

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Yield the single response of an ONNX model."""
        yield self.run(inputs)

    def record_run(self, size_bytes: int, took_ns: Duration) -> None:
        """Record the time of a run."""
        self._quick_runs.record_run(size_bytes, took_ns)

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
        texts = [element.decode() for element in array.ravel()]
    except UnicodeDecodeError:
        raise ValueError(f"input {name!r}: an element is not UTF-8 text, as ONNX strings must be") from None
    return np.array(texts, np.object_).reshape(array.shape)
