"""HTTP routes other than inference."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.serve.frontend.access import Access
from cotenant.serve.frontend.admin import AdminService
from cotenant.serve.frontend.server_settings import trace_settings, update_trace_settings
from cotenant.serve.protocol.oip.infer import InferError
from cotenant.serve.protocol.oip.infer_json import write_error
from cotenant.serve.protocol.oip.path import Route

JSON: Final = b"application/json"
_encode: Final = msgspec.json.Encoder().encode


class HttpResponse(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    kind: bytes = JSON


def _json(tree: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status, _encode(tree))


def respond_to(
    admin: AdminService, access: Access, target: Route, method: str, body: bytes
) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
    """Return the response to a request that is neither inference nor metrics."""
    kind, name, version = target
    is_read = method in ("GET", "HEAD")
    if kind in _READS and (is_read or kind not in _WRITES):
        if not is_read:
            return HttpResponse(405, write_error(f"{kind} requires GET"))
        return _READS[kind](admin, name, version)
    if method != "POST":
        return HttpResponse(405, write_error(f"{kind} requires POST"))
    if kind in _CONTROLS:
        access.check_control()
    return _WRITES[kind](admin, name, _tree(body))


def _tree(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        tree = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InferError(f"the body is not a JSON object: {error}") from None
    return tree


def _health(key: str, /, *, healthy: bool, **more: str) -> HttpResponse:
    """Return a status for Triton's clients, and a body for KServe's."""
    return _json({**more, key: healthy}, 200 if healthy else 503)


_READS: Final[dict[str, Callable[[AdminService, str, str], HttpResponse]]] = {
    "live": lambda admin, name, version: _health("live", healthy=True),
    "ready": lambda admin, name, version: _health("ready", healthy=admin.ready),
    "model-ready": lambda admin, name, version: _health(
        "ready", healthy=bool(admin.metadata(name, version)) and admin.model_ready(name, version), name=name
    ),
    "server": lambda admin, name, version: _json(admin.server()),
    "metadata": lambda admin, name, version: _json(admin.metadata(name, version)),
    "config": lambda admin, name, version: _json(admin.config(name, version)),
    "statistics": lambda admin, name, version: _json(admin.statistics(name, version)),
    "plan": lambda admin, name, version: _json(admin.plan()),
    "shm-status": lambda admin, name, version: _json(_regions(admin, name)),
    "cuda-status": lambda admin, name, version: _json([]),
    "logging": lambda admin, name, version: _json(admin.reports.settings()),
    "trace": lambda admin, name, version: _json(_trace_settings(admin, name)),
}


def _trace_settings(admin: AdminService, name: str) -> dict[str, Any]:
    if name:
        admin.engine.model(name)
    return trace_settings(admin.engine.spans)


def _update_trace(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    update_trace_settings(admin.engine.spans, tree, name)
    return _json(trace_settings(admin.engine.spans))


def _update_log(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    del name
    admin.reports.update(tree)
    return _json(admin.reports.settings())


def _regions(admin: AdminService, name: str) -> list[dict[str, Any]]:
    regions = admin.engine.regions.status(name)
    return [
        {"name": region_name, "key": region.key, "offset": region.offset, "byte_size": region.size}
        for region_name, region in regions.items()
    ]


async def _index(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    del name
    return _json(await admin.index(only_ready=tree.get("ready") is True))


async def _load(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    if tree.get("parameters"):
        raise InferError(f"failed to load {name!r}: parameters that replace its config or files are not supported")
    admin.check_control()
    await admin.load(name)
    return _json({})


def _unload(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    del tree
    admin.check_control()
    admin.unload(name)
    return _json({})


def _register(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    key, offset, size = tree.get("key"), tree.get("offset", 0), tree.get("byte_size")
    if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
        raise InferError("registration of a region needs key (string), offset and byte_size (integers)")
    admin.engine.regions.register(name, key, offset, size)
    return _json({})


def _unregister(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    del tree
    admin.engine.regions.unregister(name)
    return _json({})


def _no_cuda(admin: AdminService, name: str, tree: dict[str, Any]) -> HttpResponse:
    del admin, name, tree
    raise InferError("CUDA shared memory is not supported: models run on this machine's cores", "unsupported")


_WRITES: Final[
    dict[str, Callable[[AdminService, str, dict[str, Any]], HttpResponse | Coroutine[Any, Any, HttpResponse]]]
] = {
    "index": _index,
    "load": _load,
    "unload": _unload,
    "shm-register": _register,
    "shm-unregister": _unregister,
    "cuda-register": _no_cuda,
    "cuda-unregister": lambda admin, name, tree: _json({}),
    "logging": _update_log,
    "trace": _update_trace,
}
_CONTROLS: Final = frozenset(("load", "unload", "logging", "trace"))
"""Routes that change models or settings."""
