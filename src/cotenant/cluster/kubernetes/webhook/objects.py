"""Access to fields of API objects that are arbitrary JSON, with the path of a field for messages."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from cotenant.errors import ConfigError

JsonObject: TypeAlias = dict[str, Any]

_PLAIN_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def join_path(path: str, key: str) -> str:
    """Return the path of a field, as kubectl writes it: spec.containers, metadata.labels[cotenant.dev/claim]."""
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{key}]"


def object_at(parent: JsonObject, key: str, path: str = "") -> JsonObject:
    """Return a field that is an object; an absent one is empty."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(join_path(path, key), value, "must be an object")
    return value


def list_at(parent: JsonObject, key: str, path: str = "") -> list[JsonObject]:
    """Return a field that is a list of objects; an absent one is empty."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(join_path(path, key), value, "must be a list")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise ConfigError(f"{join_path(path, key)}[{index}]", item, "must be an object")
    return value


def text_at(parent: JsonObject, key: str, path: str = "") -> str:
    """Return a field that is text; an absent one is empty."""
    value = parent.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(join_path(path, key), value, "must be text")
    return value
