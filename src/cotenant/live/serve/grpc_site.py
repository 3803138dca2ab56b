"""What is answered over gRPC beside inference? Each method by one line of a table."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from google.protobuf.json_format import ParseDict

from cotenant.format.describe import config_numbers
from cotenant.format.infer import InferError, shown
from cotenant.format.infer_proto import read_message
from cotenant.format.proto import SERVICE, TYPES
from cotenant.live.serve.site import Site

_SERVING: Final = 1
_NOT_SERVING: Final = 2
Method: TypeAlias = Callable[[Site, bytes], bytes | Coroutine[Any, Any, bytes]]


def _message(name: str, tree: dict[str, Any]) -> bytes:
    packed: bytes = ParseDict(tree, TYPES[name](), ignore_unknown_fields=True).SerializeToString()
    return packed


def _asks(name: str, answer: Callable[[Site, Any], dict[str, Any]]) -> Method:
    """A method whose messages are called by its name, and whose answer is there at once."""

    def method(site: Site, data: bytes) -> bytes:
        return _message(f"{name}Response", answer(site, read_message(f"{name}Request", data)))

    return method


def _register(site: Site, asked: Any) -> dict[str, Any]:
    site.engine.regions.register(asked.name, asked.key, asked.offset, asked.byte_size)
    return {}


def _unregister(site: Site, asked: Any) -> dict[str, Any]:
    site.engine.regions.unregister(asked.name)
    return {}


def _status(site: Site, asked: Any) -> dict[str, Any]:
    return {
        "regions": {
            name: {"name": name, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for name, region in site.engine.regions.status(asked.name).items()
        }
    }


async def _index(site: Site, data: bytes) -> bytes:
    asked = read_message("RepositoryIndexRequest", data)
    return _message("RepositoryIndexResponse", {"models": await site.index(only_ready=asked.ready)})


async def _load(site: Site, data: bytes) -> bytes:
    asked = read_message("RepositoryModelLoadRequest", data)
    if asked.parameters:
        text = "parameters that replace its config or files are not supported"
        raise InferError(f"failed to load {asked.model_name!r}: {text}")
    await site.load(asked.model_name)
    return b""


def _unload(site: Site, data: bytes) -> bytes:
    site.unload(read_message("RepositoryModelUnloadRequest", data).model_name)
    return b""


def _check(site: Site, data: bytes) -> bytes:
    """What orchestrators ask any server of gRPC: grpc.health.v1."""
    asked = read_message("HealthCheckRequest", data).service
    if asked not in ("", SERVICE):
        raise InferError(f"no service {shown(asked)} is here, only {SERVICE}", "not-found")
    return _message("HealthCheckResponse", {"status": _SERVING if site.ready else _NOT_SERVING})


def _no_cuda(site: Site, data: bytes) -> bytes:
    del site, data
    raise InferError("CUDA shared memory is not supported: models run on this machine's cores", "unsupported")


METHODS: Final[dict[str, Method]] = {
    "ServerLive": _asks("ServerLive", lambda site, asked: {"live": True}),
    "ServerReady": _asks("ServerReady", lambda site, asked: {"ready": site.ready}),
    "ModelReady": _asks("ModelReady", lambda site, asked: {"ready": site.model_ready(asked.name, asked.version)}),
    "ServerMetadata": _asks("ServerMetadata", lambda site, asked: site.server()),
    "ModelMetadata": _asks("ModelMetadata", lambda site, asked: site.metadata(asked.name, asked.version)),
    "ModelConfig": _asks(
        "ModelConfig", lambda site, asked: {"config": config_numbers(site.config(asked.name, asked.version))}
    ),
    "ModelStatistics": _asks("ModelStatistics", lambda site, asked: site.statistics(asked.name, asked.version)),
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "SystemSharedMemoryStatus": _asks("SystemSharedMemoryStatus", _status),
    "SystemSharedMemoryRegister": _asks("SystemSharedMemoryRegister", _register),
    "SystemSharedMemoryUnregister": _asks("SystemSharedMemoryUnregister", _unregister),
    "CudaSharedMemoryStatus": lambda site, data: b"",
    "CudaSharedMemoryRegister": _no_cuda,
    "CudaSharedMemoryUnregister": lambda site, data: b"",
    "/grpc.health.v1.Health/Check": _check,
}
