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
        inputs=_configured_tensors("input", spec.inputs, triton.inputs, front, all_needed=True),
        outputs=_configured_tensors("output", spec.outputs, triton.outputs, front, all_needed=False),
        preferred_batches=tuple(rows for rows in triton.preferred_batches if rows <= spec.max_batch),
        wait_ns=triton.wait_ns,
        instances=triton.instances,
    )


def _configured_tensors(
    side: str,
    model_tensors: tuple[TensorSpec, ...],
    configured: tuple[TensorSpec, ...],
    front: tuple[int, ...],
    *,
    all_needed: bool,
) -> tuple[TensorSpec, ...]:
    """Return the tensors as configured, if they match the model's."""
    if not configured:
        return model_tensors
    by_name = {tensor.name: tensor for tensor in model_tensors}
    agreed = []
    for wanted in configured:
        shape = (*front, *wanted.shape)
        tensor = by_name.pop(wanted.name, None)
        if tensor is None:
            raise ModelLoadError(
                f"{side} {wanted.name!r} of config.pbtxt is not a tensor of the model: {', '.join(by_name)}"
            )
        if tensor.datatype is not wanted.datatype:
            raise ModelLoadError(
                f"{side} {wanted.name!r} is {tensor.datatype.value}, config.pbtxt says {wanted.datatype.value}"
            )
        if len(tensor.shape) != len(shape) or any(
            -1 not in (a, b) and a != b for a, b in zip(tensor.shape, shape, strict=True)
        ):
            raise ModelLoadError(
                f"{side} {wanted.name!r} has shape {list(tensor.shape)}, config.pbtxt says {list(shape)}"
            )
        agreed.append(msgspec.structs.replace(tensor, shape=shape))
    if all_needed and by_name:
        raise ModelLoadError(f"{side} {next(iter(by_name))!r} of the model is missing in config.pbtxt")
    return tuple(agreed)


def batch_limit(
    config: ModelConfig,
    triton: TritonConfig | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    declares_batch: bool,
) -> int:
    """Return the maximum rows of a run: from the model's own configuration, its Triton config, or its shapes."""
    configured = config.max_batch
    if configured is None and triton is not None:
        configured = triton.max_batch
    if configured and not takes_batches(inputs, outputs):
        raise ModelLoadError(f"a batch of {configured} is configured, but not every tensor's first dimension is free")
    if configured is not None:
        return configured
    return DEFAULT_BATCH if declares_batch else 0
