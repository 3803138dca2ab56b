"""JSON Patch (RFC 6902): the operations that turn one document into another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Operation: TypeAlias = dict[str, Any]


def difference(old: Any, new: Any, pointer: str = "") -> list[Operation]:
    """Return operations that turn `old` into `new`; items of a list are compared by their index."""
    if _equal(old, new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return list(_object_difference(old, new, pointer))
    if isinstance(old, list) and isinstance(new, list):
        return list(_list_difference(old, new, pointer))
    return [{"op": "replace", "path": pointer, "value": new}]


def _equal(old: Any, new: Any) -> bool:
    """Compare as JSON does: true is not 1, which Python considers equal."""
    return type(old) is type(new) and bool(old == new) and not isinstance(old, dict | list)


def _object_difference(old: dict[str, Any], new: dict[str, Any], pointer: str) -> Iterator[Operation]:
    for key, value in old.items():
        path = f"{pointer}/{_escape(key)}"
        if key not in new:
            yield {"op": "remove", "path": path}
        else:
            yield from difference(value, new[key], path)
    for key, value in new.items():
        if key not in old:
            yield {"op": "add", "path": f"{pointer}/{_escape(key)}", "value": value}


def _list_difference(old: list[Any], new: list[Any], pointer: str) -> Iterator[Operation]:
    common = min(len(old), len(new))
    for index in range(common):
        yield from difference(old[index], new[index], f"{pointer}/{index}")
    for index in range(len(old) - 1, common - 1, -1):  # from the end, so that no index moves
        yield {"op": "remove", "path": f"{pointer}/{index}"}
    for item in new[common:]:
        yield {"op": "add", "path": f"{pointer}/-", "value": item}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
