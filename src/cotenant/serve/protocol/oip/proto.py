"""Messages of inference.GRPCInferenceService, with the field numbers of the public protocol.

The messages are tables instead of generated code, in a descriptor pool of their own, so that they do not conflict with
those of a client library in the same process.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "inference"
SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}
_TENSOR: Final = "name string 1; datatype string 2; shape int64* 3; parameters map<InferParameter> {0}; {1}"

MESSAGES: Final = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live bool 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready bool 1",
    "ModelReadyRequest": "name string 1; version string 2",
    "ModelReadyResponse": "ready bool 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name string 1; version string 2; extensions string* 3",
    "ModelMetadataRequest": "name string 1; version string 2",
    "TensorMetadata": "name string 1; datatype string 2; shape int64* 3",
    "ModelMetadataResponse": (
        "name string 1; versions string* 2; platform string 3; inputs TensorMetadata* 4; outputs TensorMetadata* 5"
    ),
    "InferParameter": (
        "bool_param bool 1 one; int64_param int64 2 one; string_param string 3 one; double_param double 4 one; "
        "uint64_param uint64 5 one"
    ),
    "InferTensorContents": (
        "bool_contents bool* 1; int_contents int32* 2; int64_contents int64* 3; uint_contents uint32* 4; "
        "uint64_contents uint64* 5; fp32_contents float* 6; fp64_contents double* 7; bytes_contents bytes* 8"
    ),
    "InferInputTensor": _TENSOR.format(4, "contents InferTensorContents 5"),
    "InferRequestedOutputTensor": "name string 1; parameters map<InferParameter> 2",
    "InferOutputTensor": _TENSOR.format(4, "contents InferTensorContents 5"),
    "ModelInferRequest": (
        "model_name string 1; model_version string 2; id string 3; parameters map<InferParameter> 4; "
        "inputs InferInputTensor* 5; outputs InferRequestedOutputTensor* 6; raw_input_contents bytes* 7"
    ),
    "ModelInferResponse": (
        "model_name string 1; model_version string 2; id string 3; parameters map<InferParameter> 4; "
        "outputs InferOutputTensor* 5; raw_output_contents bytes* 6"
    ),
    "ModelStreamInferResponse": "error_message string 1; infer_response ModelInferResponse 2",
    "ModelConfigRequest": "name string 1; version string 2",
    "ModelInput": "name string 1; data_type int32 2; dims int64* 4",
    "ModelOutput": "name string 1; data_type int32 2; dims int64* 3",
    "ModelDynamicBatching": "preferred_batch_size int32* 1; max_queue_delay_microseconds uint64 2",
    "ModelInstanceGroup": "name string 1; count int32 2; kind int32 4",
    "ModelTransactionPolicy": "decoupled bool 1",
    "ModelConfig": (
        "name string 1; platform string 2; max_batch_size int32 4; input ModelInput* 5; output ModelOutput* 6; "
        "instance_group ModelInstanceGroup* 7; dynamic_batching ModelDynamicBatching 11; backend string 17; "
        "model_transaction_policy ModelTransactionPolicy 19"
    ),
    "ModelConfigResponse": "config ModelConfig 1",
    "ModelStatisticsRequest": "name string 1; version string 2",
    "StatisticDuration": "count uint64 1; ns uint64 2",
    "InferStatistics": (
        "success StatisticDuration 1; fail StatisticDuration 2; queue StatisticDuration 3; "
        "compute_input StatisticDuration 4; compute_infer StatisticDuration 5; compute_output StatisticDuration 6; "
        "cache_hit StatisticDuration 7; cache_miss StatisticDuration 8"
    ),
    "InferBatchStatistics": (
        "batch_size uint64 1; compute_input StatisticDuration 2; compute_infer StatisticDuration 3; "
        "compute_output StatisticDuration 4"
    ),
    "ModelStatistics": (
        "name string 1; version string 2; last_inference uint64 3; inference_count uint64 4; execution_count uint64 5; "
        "inference_stats InferStatistics 6; batch_stats InferBatchStatistics* 7"
    ),
    "ModelStatisticsResponse": "model_stats ModelStatistics* 1",
    "ModelRepositoryParameter": (
        "bool_param bool 1 one; int64_param int64 2 one; string_param string 3 one; bytes_param bytes 4 one"
    ),
    "RepositoryIndexRequest": "repository_name string 1; ready bool 2",
    "ModelIndex": "name string 1; version string 2; state string 3; reason string 4",
    "RepositoryIndexResponse": "models ModelIndex* 1",
    "RepositoryModelLoadRequest": (
        "repository_name string 1; model_name string 2; parameters map<ModelRepositoryParameter> 3"
    ),
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": (
        "repository_name string 1; model_name string 2; parameters map<ModelRepositoryParameter> 3"
    ),
    "RepositoryModelUnloadResponse": "",
    "SystemSharedMemoryStatusRequest": "name string 1",
    "RegionStatus": "name string 1; key string 2; offset uint64 3; byte_size uint64 4",
    "SystemSharedMemoryStatusResponse": "regions map<RegionStatus> 1",
    "SystemSharedMemoryRegisterRequest": "name string 1; key string 2; offset uint64 3; byte_size uint64 4",
    "SystemSharedMemoryRegisterResponse": "",
    "SystemSharedMemoryUnregisterRequest": "name string 1",
    "SystemSharedMemoryUnregisterResponse": "",
    "TraceValue": "value string* 1",
    "TraceSettingRequest": "settings map<TraceValue> 1; model_name string 2",
    "TraceSettingResponse": "settings map<TraceValue> 1",
    "LogValue": "bool_param bool 1 one; uint32_param uint32 2 one; string_param string 3 one",
    "LogSettingsRequest": "settings map<LogValue> 1",
    "LogSettingsResponse": "settings map<LogValue> 1",
    "HealthCheckRequest": "service string 1",
    "HealthCheckResponse": "status int32 1",
}
"""Each message as `name type number`, with * for repeated fields and `one` for members of a oneof."""


def _describe(name: str, fields: str) -> descriptor_pb2.DescriptorProto:
    message = descriptor_pb2.DescriptorProto(name=name)
    for text in filter(None, (part.strip() for part in fields.split(";"))):
        field_name, kind, number, *oneof = text.split()
        field = message.field.add(name=field_name, number=int(number))
        repeated = kind.endswith("*") or kind.startswith("map<")
        field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        kind = kind.removesuffix("*")
        if kind.startswith("map<"):
            kind = _add_map_entry(message, field_name, kind[4:-1])
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _Field.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{kind}"
        if oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
            field.oneof_index = 0
    return message


def _add_map_entry(message: descriptor_pb2.DescriptorProto, field_name: str, kind: str) -> str:
    """Add the entry type of a map field, which protobuf encodes as a repeated message."""
    entry_name = "".join(part.capitalize() for part in field_name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    value = entry.field.add(name="value", number=2, type=_Field.TYPE_MESSAGE, label=_Field.LABEL_OPTIONAL)
    value.type_name = f".{PACKAGE}.{kind}"
    return f"{message.name}.{entry_name}"


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        file.message_type.append(_describe(name, fields))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


TYPES: Final = _build()
"""The class of each message."""
