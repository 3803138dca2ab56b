"""gRPC messages of the load generator, encoded as protobuf."""

from __future__ import annotations

import msgspec

from cotenant.serve.load.request import InferenceRequest, ModelMetadata, parameters_of
from cotenant.serve.protocol.oip.proto import SERVICE, TYPES

INFER: str = f"/{SERVICE}/ModelInfer"
METADATA: str = f"/{SERVICE}/ModelMetadata"


def grpc_request(request: InferenceRequest) -> bytes:
    """Encode a ModelInferRequest with raw tensors."""
    message = TYPES["ModelInferRequest"](model_name=request.model)
    for tensor in request.inputs:
        message.inputs.add(name=tensor.spec.name, datatype=tensor.spec.datatype.value, shape=tensor.spec.shape)
        message.raw_input_contents.append(tensor.raw)
    for name in request.outputs:
        message.outputs.add(name=name)
    for name, value in parameters_of(request).items():
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
    response = TYPES["ModelMetadataResponse"].FromString(message)
    sides = {
        side: [
            {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            for tensor in getattr(response, side)
        ]
        for side in ("inputs", "outputs")
    }
    return msgspec.convert(sides, ModelMetadata)
