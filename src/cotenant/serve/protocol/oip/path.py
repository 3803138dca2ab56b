"""Paths of the protocol over HTTP."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple
from urllib.parse import unquote

from cotenant.serve.protocol.oip.infer import InferError, quoted

_CACHED_TARGETS: Final = 1024
_FIXED_ROUTES: Final = {
    "v2": "server",
    "v2/health/live": "live",
    "v2/health/ready": "ready",
    "v2/models/stats": "statistics",
    "v2/repository/index": "index",
    "v2/systemsharedmemory/status": "shm-status",
    "v2/systemsharedmemory/unregister": "shm-unregister",
    "v2/cudasharedmemory/status": "cuda-status",
    "v2/cudasharedmemory/unregister": "cuda-unregister",
    "v2/cotenant/plan": "plan",
    "v2/logging": "logging",
    "v2/trace/setting": "trace",
    "metrics": "metrics",
}
_MODEL_ROUTES: Final = {
    "": "metadata",
    "infer": "infer",
    "ready": "model-ready",
    "config": "config",
    "stats": "statistics",
}
_REGION_ACTIONS: Final = {"status", "register", "unregister"}
_MEMORIES: Final = {"systemsharedmemory": "shm", "cudasharedmemory": "cuda"}


class Route(NamedTuple):
    """The kind of a request, and the model or region that its path names."""

    kind: str
    name: str = ""
    version: str = ""


@functools.lru_cache(_CACHED_TARGETS)
def parse_route(target: str) -> Route:
    """Parse a request target; the query is ignored."""
    path = target.partition("?")[0].strip("/")
    kind = _FIXED_ROUTES.get(path)
    if kind is not None:
        return Route(kind)
    words = [unquote(word) for word in path.split("/")]
    match words:
        case ["v2", "models", name, "versions", version]:
            return Route("metadata", name, version)
        case ["v2", "models", name, "versions", version, action] if action in _MODEL_ROUTES:
            return Route(_MODEL_ROUTES[action], name, version)
        case ["v2", "models", name, "trace", "setting"]:
            return Route("trace", name)
        case ["v2", "models", name]:
            return Route("metadata", name)
        case ["v2", "models", name, action] if action in _MODEL_ROUTES:
            return Route(_MODEL_ROUTES[action], name)
        case ["v2", "repository", "models", name, ("load" | "unload") as action]:
            return Route(action, name)
        case ["v2", memory, "region", name, action] if memory in _MEMORIES and action in _REGION_ACTIONS:
            return Route(f"{_MEMORIES[memory]}-{action}", name)
    raise InferError(f"unknown path {quoted(target)}", "not-found")
