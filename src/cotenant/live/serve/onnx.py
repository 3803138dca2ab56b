"""How is an ONNX model run on cores? By ONNX Runtime: one session per model, whose threads are the model's share.

A session may be run from any number of threads at once, so one session, and with it one copy of the weights, serves
every run of a model. A run on one core is done by the calling thread alone, which is pinned; a larger share has a pool
of threads in the session, pinned where the share is all cores. Sessions of different thread counts cannot share their
weights fully: ONNX Runtime packs them anew for each session, and what would share that is not in its Python interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cotenant.domain.instant import Duration
from cotenant.domain.serving import ModelSpec
from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.format.tensor import NUMPY, Array
from cotenant.live.serve.model import LoadFailed, Pace, any_rank

PLATFORM: Final = "onnxruntime_onnx"
DEFAULT_BATCH: Final = 8
"""Rows of a batch where a model takes any number and nobody has said how many are wise. Our choice."""
_BFLOAT16: Final = 16
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


def open_session(path: Path, share: int, cores: Sequence[int]) -> Any:
    """A session of that many threads; the numbers of the cores are the machine's own."""
    import onnxruntime  # noqa: PLC0415  an optional package, and slow to import

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = share
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if share > 1 and share == len(cores):
        # One entry for each thread but the caller's; its cores count from 1.
        options.add_session_config_entry(
            "session.intra_op_thread_affinities", ";".join(str(one + 1) for one in cores[1:])
        )
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  its own exceptions have no common ancestor
        raise LoadFailed(f"ONNX Runtime cannot load {path.name}: {str(error)[:500]}") from None


def tensor_specs(session: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What a session takes and gives, with the shapes as its file has them."""
    sides = []
    for nodes in (session.get_inputs(), session.get_outputs()):
        specs = []
        for node in nodes:
            datatype = _TYPES.get(node.type)
            if datatype is None:
                raise LoadFailed(f"tensor {node.name!r} is {node.type}, which the protocol has no datatype for")
            specs.append(TensorSpec(node.name, datatype, any_rank(node.shape)))
        sides.append(tuple(specs))
    return sides[0], sides[1]


def takes_batches(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Whether the first dimension of every tensor is free, as that of a batch is."""
    return bool(inputs) and all(one.shape[:1] == (-1,) for one in (*inputs, *outputs))


class OnnxModel:
    """A model of the CPU runtime."""

    def __init__(self, spec: ModelSpec, session: Any) -> None:
        """The spec names the session's tensors."""
        self.spec = spec
        self._session = session
        self._inputs = [one.name for one in spec.inputs]
        self._outputs = [one.name for one in spec.outputs]
        self._odd = any(one.datatype is Datatype.BF16 for one in (*spec.inputs, *spec.outputs))
        self._texts = [place for place, one in enumerate(spec.inputs) if one.datatype is Datatype.BYTES]
        pace = Pace()
        self.is_quick = pace.is_quick
        self.took_at_once = pace.took_at_once
        self._pace = pace

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        if self._texts:
            inputs = list(inputs)
            for place in self._texts:
                inputs[place] = _as_text(self._inputs[place], inputs[place])
        if self._odd:
            return self._run_odd(inputs)
        feed = dict(zip(self._inputs, inputs, strict=True))
        found: list[Array] = self._session.run(self._outputs, feed)
        return found

    def _run_odd(self, inputs: Sequence[Array]) -> list[Array]:
        """With BF16, which numpy has no type for."""
        import onnxruntime  # noqa: PLC0415  as above

        value = onnxruntime.OrtValue
        feed = {}
        for one, array in zip(self.spec.inputs, inputs, strict=True):
            whole = np.ascontiguousarray(array)
            bits = one.datatype is Datatype.BF16
            make = value.ortvalue_from_numpy_with_onnx_type
            feed[one.name] = make(whole, _BFLOAT16) if bits else value.ortvalue_from_numpy(whole)
        found = self._session.run_with_ort_values(self._outputs, feed)
        return [_array(one, tensor) for one, tensor in zip(self.spec.outputs, found, strict=True)]

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """One answer, as an ONNX model has."""
        yield self.run(inputs)

    def took(self, size_bytes: int, took_ns: Duration) -> None:
        """What a run took."""
        self._pace.took(size_bytes, took_ns)

    def close(self) -> None:
        """Let go of the session, once the last run has."""
        self._session = None


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
        raise ValueError(f"input {name!r}: an element is no UTF-8 text, which strings of ONNX are") from None
    return np.array(texts, np.object_).reshape(array.shape)
