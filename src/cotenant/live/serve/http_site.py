"""What is answered over HTTP beside inference? Each kind of question by one line of a table."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from cotenant.format.infer import InferError
from cotenant.format.infer_json import write_error
from cotenant.format.target import Target
from cotenant.live.serve.site import Site

JSON: Final = b"application/json"
_encode: Final = msgspec.json.Encoder().encode


class Answered(NamedTuple):
    """An answer that is there."""

    status: int
    body: bytes
    kind: bytes = JSON


def _json(tree: Any, status: int = 200) -> Answered:
    return Answered(status, _encode(tree))


def answer_to(site: Site, target: Target, method: str, body: bytes) -> Answered | Coroutine[Any, Any, Answered]:
    """The answer to whatever is neither inference nor figures."""
    kind, name, version = target
    reads = method in ("GET", "HEAD")
    if kind in _READS:
        if not reads:
            return Answered(405, write_error(f"{kind} is asked for by GET"))
        return _READS[kind](site, name, version)
    if method != "POST":
        return Answered(405, write_error(f"{kind} is asked for by POST"))
    return _WRITES[kind](site, name, _tree(body))


def _tree(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        tree = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InferError(f"the body is no JSON object: {error}") from None
    return tree


def _health(*, well: bool) -> Answered:
    return Answered(200 if well else 503, b"")


_READS: Final[dict[str, Callable[[Site, str, str], Answered]]] = {
    "live": lambda site, name, version: _health(well=True),
    "ready": lambda site, name, version: _health(well=site.ready),
    "model-ready": lambda site, name, version: _health(
        well=bool(site.metadata(name, version)) and site.model_ready(name, version)
    ),
    "server": lambda site, name, version: _json(site.server()),
    "metadata": lambda site, name, version: _json(site.metadata(name, version)),
    "config": lambda site, name, version: _json(site.config(name, version)),
    "statistics": lambda site, name, version: _json(site.statistics(name, version)),
    "plan": lambda site, name, version: _json(site.plan()),
    "shm-status": lambda site, name, version: _json(_regions(site, name)),
    "cuda-status": lambda site, name, version: _json([]),
}


def _regions(site: Site, name: str) -> list[dict[str, Any]]:
    found = site.engine.regions.status(name)
    return [
        {"name": one, "key": region.key, "offset": region.offset, "byte_size": region.size}
        for one, region in found.items()
    ]


async def _index(site: Site, name: str, tree: dict[str, Any]) -> Answered:
    del name
    return _json(await site.index(only_ready=tree.get("ready") is True))


async def _load(site: Site, name: str, tree: dict[str, Any]) -> Answered:
    if tree.get("parameters"):
        raise InferError(f"failed to load {name!r}: parameters that replace its config or files are not supported")
    await site.load(name)
    return _json({})


def _unload(site: Site, name: str, tree: dict[str, Any]) -> Answered:
    del tree
    site.unload(name)
    return _json({})


def _register(site: Site, name: str, tree: dict[str, Any]) -> Answered:
    key, offset, size = tree.get("key"), tree.get("offset", 0), tree.get("byte_size")
    if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
        raise InferError("a region is registered by its key, offset and byte_size")
    site.engine.regions.register(name, key, offset, size)
    return _json({})


def _unregister(site: Site, name: str, tree: dict[str, Any]) -> Answered:
    del tree
    site.engine.regions.unregister(name)
    return _json({})


def _no_cuda(site: Site, name: str, tree: dict[str, Any]) -> Answered:
    del site, name, tree
    raise InferError("CUDA shared memory is not supported: models run on this machine's cores", "unsupported")


_WRITES: Final[dict[str, Callable[[Site, str, dict[str, Any]], Answered | Coroutine[Any, Any, Answered]]]] = {
    "index": _index,
    "load": _load,
    "unload": _unload,
    "shm-register": _register,
    "shm-unregister": _unregister,
    "cuda-register": _no_cuda,
    "cuda-unregister": lambda site, name, tree: _json({}),
}
