"""Application of a Triton config to a model, with checks against the model file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import TensorSpec
from cotenant.serve.model_config_format import ModelConfig
from cotenant.serve.protocol.triton.pbtxt import TritonConfig
from cotenant.serve.runtime.model import ModelLoadError
from cotenant.serve.runtime.onnx import DEFAULT_BATCH, PLATFORM, takes_batches


def with_triton_config(spec: ModelSpec, triton: TritonConfig) -> ModelSpec:
    """Return the spec with the settings of config.pbtxt; raise `ModelLoadError` if they contradict the model."""
    if triton.name and triton.name != spec.name:
        raise ModelLoadError(f"config.pbtxt names the model {triton.name!r}, its folder is {spec.name!r}")
    if triton.platform not in ("", PLATFORM, "onnxruntime", "onnx"):
        raise ModelLoadError(f"platform {triton.platform!r} is not supported, only {PLATFORM}")
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
    """Return the tensors as configured, if they match the model's."""
    if not said:
        return real
    by_name = {one.name: one for one in real}
    agreed = []
    for one in said:
        shape = (*front, *one.shape)
        known = by_name.pop(one.name, None)
        if known is None:
            raise ModelLoadError(
                f"{side} {one.name!r} of config.pbtxt is not a tensor of the model: {', '.join(by_name)}"
            )
        if known.datatype is not one.datatype:
            raise ModelLoadError(
                f"{side} {one.name!r} is {known.datatype.value}, config.pbtxt says {one.datatype.value}"
            )
        if len(known.shape) != len(shape) or any(
            -1 not in (a, b) and a != b for a, b in zip(known.shape, shape, strict=True)
        ):
            raise ModelLoadError(f"{side} {one.name!r} has shape {list(known.shape)}, config.pbtxt says {list(shape)}")
        agreed.append(msgspec.structs.replace(known, shape=shape))
    if all_needed and by_name:
        raise ModelLoadError(f"{side} {next(iter(by_name))!r} of the model is missing in config.pbtxt")
    return tuple(agreed)


def batch_limit(
    config: ModelConfig,
    triton: TritonConfig | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    meant: bool,
) -> int:
    """Return the maximum rows of a run: from the model's own configuration, its Triton config, or its shapes."""
    wanted = config.max_batch
    if wanted is None and triton is not None:
        wanted = triton.max_batch
    if wanted and not takes_batches(inputs, outputs):
        raise ModelLoadError(f"a batch of {wanted} is configured, but not every tensor's first dimension is free")
    if wanted is not None:
        return wanted
    return DEFAULT_BATCH if meant else 0
