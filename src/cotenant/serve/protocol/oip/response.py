"""Selection of the outputs that a request asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestedOutput
from cotenant.serve.protocol.oip.infer_json import ResponseOutput
from cotenant.serve.protocol.oip.tensor import Array


def requested_outputs(spec: ModelSpec, request: InferRequest, arrays: Sequence[Array]) -> list[ResponseOutput]:
    """Return the requested outputs."""
    if not request.outputs:
        binary = request.binary_default
        return [
            ResponseOutput(one.name, one.datatype, array.shape, array, binary)
            for one, array in zip(spec.outputs, arrays, strict=True)
        ]
    found = []
    for wanted in request.outputs:
        for one, array in zip(spec.outputs, arrays, strict=True):
            if one.name == wanted.name:
                if wanted.classes:
                    found.append(_classes(wanted, array, batched=bool(spec.max_batch)))
                else:
                    found.append(
                        ResponseOutput(one.name, one.datatype, array.shape, array, wanted.binary, wanted.place)
                    )
    return found


def _classes(wanted: RequestedOutput, array: Array, *, batched: bool) -> ResponseOutput:
    """Return the largest values as `VALUE:INDEX`, the largest first (classification extension)."""
    if array.dtype.kind not in "fiub":
        raise InferError(f"output {wanted.name!r} has no values to classify by")
    rows = array.reshape(array.shape[0], -1) if batched else array.reshape(1, -1)
    count = min(wanted.classes, rows.shape[1])
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = np.empty(best.shape, np.object_)
    for row, directories in enumerate(best):
        for place, index in enumerate(directories):
            texts[row, place] = f"{rows[row, index]:f}:{index}".encode()
    shaped = texts if batched else texts.reshape(-1)
    return ResponseOutput(wanted.name, Datatype.BYTES, shaped.shape, shaped, wanted.binary, wanted.place)
