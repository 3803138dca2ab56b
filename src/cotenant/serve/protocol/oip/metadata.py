"""Model metadata and configuration in the protocol's form."""

from __future__ import annotations

from typing import Any, Final

from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.units.instant import MICROSECOND_NS

EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
    "trace",
)
_ORDER: Final = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
DATA_TYPES: Final = {f"TYPE_{name}": number for number, name in enumerate(_ORDER.split())}
"""Datatypes of a model configuration with their enum numbers."""
INSTANCE_KINDS: Final = {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3}
_BACKENDS: Final = {"onnxruntime_onnx": "onnxruntime"}


def config_type(datatype: Datatype) -> str:
    """Return the name of a datatype in a model configuration."""
    return "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype.value}"


def metadata(spec: ModelSpec) -> dict[str, Any]:
    """Return a model's metadata; shapes include the batch."""
    return {
        "name": spec.name,
        "versions": [spec.version],
        "platform": spec.platform,
        "inputs": [_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_tensor(tensor) for tensor in spec.outputs],
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def config(spec: ModelSpec, cores: int) -> dict[str, Any]:
    """Return a model's configuration; dims do not include the batch."""
    skip = 1 if spec.max_batch else 0
    sides = [
        [
            {"name": tensor.name, "data_type": config_type(tensor.datatype), "dims": list(tensor.shape[skip:])}
            for tensor in side
        ]
        for side in (spec.inputs, spec.outputs)
    ]
    instances = spec.instances or max(cores // min(spec.share, cores), 1)
    tree: dict[str, Any] = {
        "name": spec.name,
        "platform": spec.platform,
        "backend": _BACKENDS.get(spec.platform, spec.platform),
        "max_batch_size": spec.max_batch,
        "input": sides[0],
        "output": sides[1],
        "instance_group": [{"name": spec.name, "count": instances, "kind": "KIND_CPU"}],
        "model_transaction_policy": {"decoupled": spec.decoupled},
    }
    if spec.max_batch:
        tree["dynamic_batching"] = {
            "preferred_batch_size": list(spec.preferred_batches),
            "max_queue_delay_microseconds": spec.wait_ns // MICROSECOND_NS,
        }
    return tree


def config_numbers(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with enum numbers instead of names, for protobuf."""
    sides = {
        side: [{**tensor, "data_type": DATA_TYPES[tensor["data_type"]]} for tensor in tree[side]]
        for side in ("input", "output")
    }
    groups = [{**group, "kind": INSTANCE_KINDS[group["kind"]]} for group in tree["instance_group"]]
    return {**tree, **sides, "instance_group": groups}
