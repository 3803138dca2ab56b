"""gRPC methods other than inference."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from google.protobuf.json_format import ParseDict

from cotenant.serve.frontend.admin import AdminService
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


def _asks(name: str, answer: Callable[[AdminService, Any], dict[str, Any]]) -> Method:
    """Return a method whose message types have its name and whose response needs no waiting."""

    def method(admin: AdminService, data: bytes) -> bytes:
        return _message(f"{name}Response", answer(admin, read_message(f"{name}Request", data)))

    return method


def _register(admin: AdminService, asked: Any) -> dict[str, Any]:
    admin.engine.regions.register(asked.name, asked.key, asked.offset, asked.byte_size)
    return {}


def _unregister(admin: AdminService, asked: Any) -> dict[str, Any]:
    admin.engine.regions.unregister(asked.name)
    return {}


def _status(admin: AdminService, asked: Any) -> dict[str, Any]:
    return {
        "regions": {
            name: {"name": name, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for name, region in admin.engine.regions.status(asked.name).items()
        }
    }


async def _index(admin: AdminService, data: bytes) -> bytes:
    asked = read_message("RepositoryIndexRequest", data)
    return _message("RepositoryIndexResponse", {"models": await admin.index(only_ready=asked.ready)})


async def _load(admin: AdminService, data: bytes) -> bytes:
    asked = read_message("RepositoryModelLoadRequest", data)
    if asked.parameters:
        text = "parameters that replace its config or files are not supported"
        raise InferError(f"failed to load {asked.model_name!r}: {text}")
    await admin.load(asked.model_name)
    return b""


def _unload(admin: AdminService, data: bytes) -> bytes:
    admin.unload(read_message("RepositoryModelUnloadRequest", data).model_name)
    return b""


def _check(admin: AdminService, data: bytes) -> bytes:
    """Answer grpc.health.v1.Health/Check."""
    asked = read_message("HealthCheckRequest", data).service
    if asked not in ("", SERVICE):
        raise InferError(f"unknown service {quoted(asked)}; this server has {SERVICE}", "not-found")
    return _message("HealthCheckResponse", {"status": _SERVING if admin.ready else _NOT_SERVING})


def _no_cuda(admin: AdminService, data: bytes) -> bytes:
    del admin, data
    raise InferError("CUDA shared memory is not supported: models run on this machine's cores", "unsupported")


METHODS: Final[dict[str, Method]] = {
    "ServerLive": _asks("ServerLive", lambda admin, asked: {"live": True}),
    "ServerReady": _asks("ServerReady", lambda admin, asked: {"ready": admin.ready}),
    "ModelReady": _asks("ModelReady", lambda admin, asked: {"ready": admin.model_ready(asked.name, asked.version)}),
    "ServerMetadata": _asks("ServerMetadata", lambda admin, asked: admin.server()),
    "ModelMetadata": _asks("ModelMetadata", lambda admin, asked: admin.metadata(asked.name, asked.version)),
    "ModelConfig": _asks(
        "ModelConfig", lambda admin, asked: {"config": config_numbers(admin.config(asked.name, asked.version))}
    ),
    "ModelStatistics": _asks("ModelStatistics", lambda admin, asked: admin.statistics(asked.name, asked.version)),
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _asks("SystemSharedMemoryStatus", _status),
    "SystemSharedMemoryRegister": _asks("SystemSharedMemoryRegister", _register),
    "SystemSharedMemoryUnregister": _asks("SystemSharedMemoryUnregister", _unregister),
    "CudaSharedMemoryStatus": lambda admin, data: b"",
    "CudaSharedMemoryRegister": _no_cuda,
    "CudaSharedMemoryUnregister": lambda admin, data: b"",
    "/grpc.health.v1.Health/Check": _check,
}
