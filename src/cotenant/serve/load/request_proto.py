"""gRPC messages of the load generator, encoded as protobuf."""

from __future__ import annotations

import msgspec

from cotenant.serve.load.request import InferenceRequest, ModelMetadata, parameters_of
from cotenant.serve.protocol.oip.proto import SERVICE, TYPES

INFER: str = f"/{SERVICE}/ModelInfer"
METADATA: str = f"/{SERVICE}/ModelMetadata"


def grpc_request(asked: InferenceRequest) -> bytes:
    """Encode a ModelInferRequest with raw tensors."""
    message = TYPES["ModelInferRequest"](model_name=asked.model)
    for one in asked.inputs:
        message.inputs.add(name=one.spec.name, datatype=one.spec.datatype.value, shape=one.spec.shape)
        message.raw_input_contents.append(one.raw)
    for name in asked.outputs:
        message.outputs.add(name=name)
    for name, value in parameters_of(asked).items():
        if value:
            message.parameters[name].int64_param = value
    packed: bytes = message.SerializeToString()
    return packed


def metadata_request(model: str) -> bytes:
    """Encode a ModelMetadataRequest."""
    packed: bytes = TYPES["ModelMetadataRequest"](name=model).SerializeToString()
    return packed


def read_metadata(message: bytes) -> ModelMetadata:
    """Decode a ModelMetadataResponse."""
    found = TYPES["ModelMetadataResponse"].FromString(message)
    sides = {
        side: [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in getattr(found, side)]
        for side in ("inputs", "outputs")
    }
    return msgspec.convert(sides, ModelMetadata)
