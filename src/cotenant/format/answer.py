"""Which tensors go back to the sender, and in which form? As the request wants them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotenant.domain.serving import ModelSpec
from cotenant.domain.tensor import Datatype
from cotenant.format.infer import InferError, InferRequest, WantedOutput
from cotenant.format.infer_json import Output
from cotenant.format.tensor import Array


def output_of(spec: ModelSpec, request: InferRequest, arrays: Sequence[Array]) -> list[Output]:
    """The outputs that a request wants, from all of a model's."""
    if not request.outputs:
        binary = request.binary_default
        return [
            Output(one.name, one.datatype, array.shape, array, binary)
            for one, array in zip(spec.outputs, arrays, strict=True)
        ]
    found = []
    for wanted in request.outputs:
        for one, array in zip(spec.outputs, arrays, strict=True):
            if one.name == wanted.name:
                if wanted.classes:
                    found.append(_classes(wanted, array, batched=bool(spec.max_batch)))
                else:
                    found.append(Output(one.name, one.datatype, array.shape, array, wanted.binary, wanted.place))
    return found


def _classes(wanted: WantedOutput, array: Array, *, batched: bool) -> Output:
    """The largest values with their places, `VALUE:INDEX`, the largest first: the classification extension."""
    if array.dtype.kind not in "fiub":
        raise InferError(f"output {wanted.name!r} has no values to classify by")
    rows = array.reshape(array.shape[0], -1) if batched else array.reshape(1, -1)
    count = min(wanted.classes, rows.shape[1])
    best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = np.empty(best.shape, np.object_)
    for row, places in enumerate(best):
        for place, index in enumerate(places):
            texts[row, place] = f"{rows[row, index]:f}:{index}".encode()
    shaped = texts if batched else texts.reshape(-1)
    return Output(wanted.name, Datatype.BYTES, shaped.shape, shaped, wanted.binary, wanted.place)
