"""What of a Triton config counts for a model, and does it agree with the model itself?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cotenant.domain.serving import ModelSpec
from cotenant.domain.tensor import TensorSpec
from cotenant.format.models import ModelConfig
from cotenant.format.pbtxt import TritonConfig
from cotenant.live.serve.model import LoadFailed
from cotenant.live.serve.onnx import DEFAULT_BATCH, PLATFORM, takes_batches


def as_in_triton(spec: ModelSpec, triton: TritonConfig) -> ModelSpec:
    """The spec with what its config.pbtxt says; `LoadFailed` where that contradicts the model."""
    if triton.name and triton.name != spec.name:
        raise LoadFailed(f"config.pbtxt names the model {triton.name!r}, its folder is {spec.name!r}")
    if triton.platform not in ("", PLATFORM, "onnxruntime", "onnx"):
        raise LoadFailed(f"platform {triton.platform!r} is not served here, only {PLATFORM}")
    front = (-1,) if spec.max_batch else ()
    return msgspec.structs.replace(
        spec,
        inputs=_agreed("input", spec.inputs, triton.inputs, front, all_needed=True),
        outputs=_agreed("output", spec.outputs, triton.outputs, front, all_needed=False),
        preferred_batches=tuple(one for one in triton.preferred_batches if one <= spec.max_batch),
        wait_ns=triton.wait_ns,
        instances=triton.instances,
    )


def _agreed(
    side: str, real: tuple[TensorSpec, ...], said: tuple[TensorSpec, ...], front: tuple[int, ...], *, all_needed: bool
) -> tuple[TensorSpec, ...]:
    """The tensors as the config has them, if the model has them too."""
    if not said:
        return real
    by_name = {one.name: one for one in real}
    agreed = []
    for one in said:
        shape = (*front, *one.shape)
        known = by_name.pop(one.name, None)
        if known is None:
            raise LoadFailed(f"{side} {one.name!r} of config.pbtxt is none of the model's: {', '.join(by_name)}")
        if known.datatype is not one.datatype:
            raise LoadFailed(f"{side} {one.name!r} is {known.datatype.value}, config.pbtxt says {one.datatype.value}")
        if len(known.shape) != len(shape) or any(
            -1 not in (a, b) and a != b for a, b in zip(known.shape, shape, strict=True)
        ):
            raise LoadFailed(f"{side} {one.name!r} has shape {list(known.shape)}, config.pbtxt says {list(shape)}")
        agreed.append(msgspec.structs.replace(known, shape=shape))
    if all_needed and by_name:
        raise LoadFailed(f"{side} {next(iter(by_name))!r} of the model is missing in config.pbtxt")
    return tuple(agreed)


def batch_limit(
    config: ModelConfig,
    triton: TritonConfig | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    meant: bool,
) -> int:
    """Rows of a run: as its owner says, else as its Triton config does, else as its file means its shapes."""
    wanted = config.max_batch
    if wanted is None and triton is not None:
        wanted = triton.max_batch
    if wanted and not takes_batches(inputs, outputs):
        raise LoadFailed(f"a batch of {wanted} is asked for, but not every tensor's first dimension is free")
    if wanted is not None:
        return wanted
    return DEFAULT_BATCH if meant else 0
