"""gRPC methods other than inference."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from google.protobuf.json_format import ParseDict

from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.server_settings import trace_settings, update_trace_settings
from cotenant.serve.protocol.oip.infer import InferError, quoted
from cotenant.serve.protocol.oip.infer_proto import read_message
from cotenant.serve.protocol.oip.metadata import config_numbers
from cotenant.serve.protocol.oip.proto import SERVICE, TYPES

_SERVING: Final = 1
_NOT_SERVING: Final = 2
Method: TypeAlias = Callable[[AdminService, bytes], bytes | Coroutine[Any, Any, bytes]]


def _message(name: str, tree: dict[str, Any]) -> bytes:
    packed: bytes = ParseDict(tree, TYPES[name](), ignore_unknown_fields=True).SerializeToString()
    return packed


def _method(name: str, answer: Callable[[AdminService, Any], dict[str, Any]]) -> Method:
    """Return a synchronous method; `answer` maps the request message to the response as a tree."""

    def method(admin: AdminService, data: bytes) -> bytes:
        return _message(f"{name}Response", answer(admin, read_message(f"{name}Request", data)))

    return method


def _register(admin: AdminService, request: Any) -> dict[str, Any]:
    admin.engine.regions.register(request.name, request.key, request.offset, request.byte_size)
    return {}


def _unregister(admin: AdminService, request: Any) -> dict[str, Any]:
    admin.engine.regions.unregister(request.name)
    return {}


def _status(admin: AdminService, request: Any) -> dict[str, Any]:
    return {
        "regions": {
            name: {"name": name, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for name, region in admin.engine.regions.status(request.name).items()
        }
    }


async def _index(admin: AdminService, data: bytes) -> bytes:
    request = read_message("RepositoryIndexRequest", data)
    return _message("RepositoryIndexResponse", {"models": await admin.index(only_ready=request.ready)})


async def _load(admin: AdminService, data: bytes) -> bytes:
    request = read_message("RepositoryModelLoadRequest", data)
    if request.parameters:
        text = "parameters that replace its config or files are not supported"
        raise InferError(f"failed to load {request.model_name!r}: {text}")
    admin.check_control()
    await admin.load(request.model_name)
    return b""


def _unload(admin: AdminService, data: bytes) -> bytes:
    admin.check_control()
    admin.unload(read_message("RepositoryModelUnloadRequest", data).model_name)
    return b""


def _check(admin: AdminService, data: bytes) -> bytes:
    """Answer grpc.health.v1.Health/Check."""
    service = read_message("HealthCheckRequest", data).service
    if service not in ("", SERVICE):
        raise InferError(f"unknown service {quoted(service)}; this server has {SERVICE}", "not-found")
    return _message("HealthCheckResponse", {"status": _SERVING if admin.ready else _NOT_SERVING})


def _no_cuda(admin: AdminService, data: bytes) -> bytes:
    del admin, data
    raise InferError("CUDA shared memory is not supported: models run on this machine's cores", "unsupported")


def _trace(admin: AdminService, data: bytes) -> bytes:
    request = read_message("TraceSettingRequest", data)
    if request.model_name:
        admin.engine.model(request.model_name)
    changes = {name: list(value.value) or None for name, value in request.settings.items()}
    if changes:
        update_trace_settings(admin.engine.spans, changes, request.model_name)
    settings = trace_settings(admin.engine.spans)
    values = {name: {"value": value if isinstance(value, list) else [value]} for name, value in settings.items()}
    return _message("TraceSettingResponse", {"settings": values})


def _log(admin: AdminService, data: bytes) -> bytes:
    request = read_message("LogSettingsRequest", data)
    admin.reports.update({name: getattr(value, value.WhichOneof("choice")) for name, value in request.settings.items()})
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    values = {name: {kinds[type(value)]: value} for name, value in admin.reports.settings().items()}
    return _message("LogSettingsResponse", {"settings": values})


def changes_server(method: str, message: bytes) -> bool:
    """Return whether a call changes models or settings; without settings, the calls for settings only read them."""
    if method in ("TraceSetting", "LogSettings"):
        return bool(read_message(f"{method}Request", message).settings)
    return method in ("RepositoryModelLoad", "RepositoryModelUnload")


HEALTH_METHODS: Final = frozenset(("ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"))
"""Methods that need no token, because orchestrators probe them."""

METHODS: Final[dict[str, Method]] = {
    "ServerLive": _method("ServerLive", lambda admin, request: {"live": True}),
    "ServerReady": _method("ServerReady", lambda admin, request: {"ready": admin.ready}),
    "ModelReady": _method(
        "ModelReady", lambda admin, request: {"ready": admin.model_ready(request.name, request.version)}
    ),
    "ServerMetadata": _method("ServerMetadata", lambda admin, request: admin.server()),
    "ModelMetadata": _method("ModelMetadata", lambda admin, request: admin.metadata(request.name, request.version)),
    "ModelConfig": _method(
        "ModelConfig", lambda admin, request: {"config": config_numbers(admin.config(request.name, request.version))}
    ),
    "ModelStatistics": _method(
        "ModelStatistics", lambda admin, request: admin.statistics(request.name, request.version)
    ),
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _method("SystemSharedMemoryStatus", _status),
    "SystemSharedMemoryRegister": _method("SystemSharedMemoryRegister", _register),
    "SystemSharedMemoryUnregister": _method("SystemSharedMemoryUnregister", _unregister),
    "CudaSharedMemoryStatus": lambda admin, data: b"",
    "CudaSharedMemoryRegister": _no_cuda,
    "CudaSharedMemoryUnregister": lambda admin, data: b"",
    "TraceSetting": _trace,
    "LogSettings": _log,
    "/grpc.health.v1.Health/Check": _check,
}
