"""Selection of the outputs that a request asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestedOutput
from cotenant.serve.protocol.oip.infer_json import ResponseOutput
from cotenant.serve.protocol.oip.tensor import Array

_SORTED_LIMIT: Final = 1 << 20
_CLASSES_LIMIT: Final = 1 << 14
"""Limits of a classification, which is computed by the thread that serves all clients."""


def requested_outputs(spec: ModelSpec, request: InferRequest, arrays: Sequence[Array]) -> list[ResponseOutput]:
    """Return the requested outputs."""
    if not request.outputs:
        binary = request.binary_default
        return [
            ResponseOutput(output.name, output.datatype, array.shape, array, binary)
            for output, array in zip(spec.outputs, arrays, strict=True)
        ]
    outputs = []
    for requested in request.outputs:
        for output, array in zip(spec.outputs, arrays, strict=True):
            if output.name == requested.name:
                if requested.classes:
                    outputs.append(_classes(requested, array, batched=bool(spec.max_batch)))
                else:
                    outputs.append(
                        ResponseOutput(
                            output.name, output.datatype, array.shape, array, requested.binary, requested.location
                        )
                    )
    return outputs


def _classes(requested: RequestedOutput, array: Array, *, batched: bool) -> ResponseOutput:
    """Return the largest values as `VALUE:INDEX`, the largest first (classification extension)."""
    if array.dtype.kind not in "fiub":
        raise InferError(f"output {requested.name!r} is not numeric and cannot be classified")
    rows = array.reshape(array.shape[0], -1) if batched else array.reshape(1, -1)
    count = min(requested.classes, rows.shape[1])
    if array.size > _SORTED_LIMIT or count * len(rows) > _CLASSES_LIMIT:
        limits = f"{_CLASSES_LIMIT} classes of {_SORTED_LIMIT} values are the limit"
        problem = f"{count * len(rows)} classes of {array.size} values were requested"
        raise InferError(f"output {requested.name!r}: {problem}, {limits}")
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = np.empty(best.shape, np.object_)
    for row, indices in enumerate(best):
        for rank, index in enumerate(indices):
            texts[row, rank] = f"{rows[row, index]:f}:{index}".encode()
    shaped = texts if batched else texts.reshape(-1)
    return ResponseOutput(requested.name, Datatype.BYTES, shaped.shape, shaped, requested.binary, requested.location)
