"""Paths of the protocol over HTTP."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple
from urllib.parse import unquote

from cotenant.serve.protocol.oip.infer import InferError, quoted

_TARGETS_KEPT: Final = 1024
_PLAIN: Final = {
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
    "metrics": "metrics",
}
_OF_MODEL: Final = {
    "": "metadata",
    "infer": "infer",
    "ready": "model-ready",
    "config": "config",
    "stats": "statistics",
}
_OF_REGION: Final = {"status", "register", "unregister"}
_MEMORIES: Final = {"systemsharedmemory": "shm", "cudasharedmemory": "cuda"}


class Route(NamedTuple):
    """The kind of a request, and the model or region that its path names."""

    kind: str
    name: str = ""
    version: str = ""


@functools.lru_cache(_TARGETS_KEPT)
def parse_route(target: str) -> Route:
    """Parse a request target; the query is ignored."""
    path = target.partition("?")[0].strip("/")
    plain = _PLAIN.get(path)
    if plain is not None:
        return Route(plain)
    words = [unquote(word) for word in path.split("/")]
    match words:
        case ["v2", "models", name, "versions", version]:
            return Route("metadata", name, version)
        case ["v2", "models", name, "versions", version, what] if what in _OF_MODEL:
            return Route(_OF_MODEL[what], name, version)
        case ["v2", "models", name]:
            return Route("metadata", name)
        case ["v2", "models", name, what] if what in _OF_MODEL:
            return Route(_OF_MODEL[what], name)
        case ["v2", "repository", "models", name, ("load" | "unload") as what]:
            return Route(what, name)
        case ["v2", memory, "region", name, what] if memory in _MEMORIES and what in _OF_REGION:
            return Route(f"{_MEMORIES[memory]}-{what}", name)
    raise InferError(f"there is nothing at {quoted(target)}", "not-found")
