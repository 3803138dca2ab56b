"""How do flags and fields stay one to one? The flags are made from the fields, and laid over the file's values."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from cotenant.errors import ConfigError
from cotenant.format.config import (
    Config,
    DirectoriesConfig,
    GpuConfig,
    NodeConfig,
    RunConfig,
    plain,
)
from cotenant.format.config_agent import AgentConfig
from cotenant.format.config_cluster import ClusterConfig
from cotenant.format.config_control import ControlConfig
from cotenant.format.config_protect import ProtectConfig
from cotenant.format.toml import DurationNs, Section, ShareOfWhole, SizeBytes, decode_quantity, explain_value, line_of

FieldName: TypeAlias = tuple[str, str]
"""Section and field, as in ("node", "slots")."""

NO_GPUS: Final = "none"
"""In place of a GPU: there is none, and none is to be looked for."""
SECTIONS: Final[dict[str, type[Section]]] = {
    "directories": DirectoriesConfig,
    "node": NodeConfig,
    "run": RunConfig,
    "protect": ProtectConfig,
    "control": ControlConfig,
    "agent": AgentConfig,
    "cluster": ClusterConfig,
}


class Flag(msgspec.Struct, frozen=True):
    """One flag: what it is called, what it sets, and what `--help` says of it."""

    option: str
    field: FieldName
    metavar: str
    about: str
    default: str
    """What `--help` says of the value that holds where none is given; empty for nothing worth saying."""


@functools.cache
def flags_of(section: str) -> tuple[Flag, ...]:
    """The flags of a section, in the order of its fields; only the kind of a tenant has its own (--online).

    They are asked for again and again while a command line is read, and reading the types takes longest.
    """
    flags = []
    for field in msgspec.structs.fields(SECTIONS[section]):
        if (section, field.name) == ("run", "kind"):
            continue
        metas = [meta for meta in getattr(field.type, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
        about = "".join(meta.description or "" for meta in metas)
        default = plain(field.default)
        told = "" if default in (None, "", "0s", "0B", "0%") else f" (default {default})"
        option = "--" + field.name.replace("_", "-")
        flags.append(Flag(option, (section, field.name), _metavar(section, field), about, told))
    return tuple(flags)


def _metavar(section: str, field: Any) -> str:
    """What kind of value a flag takes, as `--help` shows it."""
    kinds: dict[object, str] = {DurationNs: "DURATION", SizeBytes: "SIZE", ShareOfWhole: "PERCENT", int: "N"}
    inner = getattr(field.type, "__origin__", field.type)
    if inner is str:
        return "DIR" if section == "directories" else field.name.upper()
    return kinds.get(inner, "N")


def overlay(config: Config, given: Mapping[FieldName, Any], gpus: Sequence[str] = ()) -> Config:
    """The config with what the command line said in the place of what the file said."""
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        values = {}
        for field in msgspec.structs.fields(kind):
            if (name, field.name) in given:
                values[field.name] = _value_of(kind, field, given[name, field.name])
        sections[name] = msgspec.structs.replace(getattr(config, name), **values)
    if list(gpus) == [NO_GPUS]:
        sections["node"] = msgspec.structs.replace(sections["node"], find="no")
        sections["gpu"] = ()
    elif gpus:
        sections["gpu"] = tuple(_gpu_of(text) for text in gpus)
    return msgspec.structs.replace(config, **sections)


def sources(text: str, where: str, given: Mapping[FieldName, Any]) -> dict[str, str]:
    """Where each value came from, for `config show`: a flag, a line of the file, or the default."""
    found = {}
    written = tomllib.loads(text)
    for section, kind in SECTIONS.items():
        for field in kind.__struct_fields__:
            if (section, field) in given:
                found[f"{section}.{field}"] = "flag"
            elif field in written.get(section, {}):  # in an inline table the nearest line is the table's own
                found[f"{section}.{field}"] = f"{where}:{line_of(text, [section, field])}"
            else:
                found[f"{section}.{field}"] = "default"
    return found


def _value_of(section: type[Section], field: Any, value: Any) -> Any:
    option = "--" + field.name.replace("_", "-")
    if not value.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        raise ConfigError(option, value, "is not UTF-8 text, write it in UTF-8")
    try:
        return msgspec.convert(value, field.type, dec_hook=decode_quantity, strict=False)
    except msgspec.ValidationError as error:
        remedy = explain_value(str(error), section, field.name)
        raise ConfigError(option, value, remedy) from None


def _gpu_of(text: str) -> GpuConfig:
    name, _, memory = text.partition("=")
    try:
        return msgspec.convert({"name": name, "memory": memory}, GpuConfig, dec_hook=decode_quantity)
    except msgspec.ValidationError:
        raise ConfigError("--gpu", text, "write NAME=MEMORY, as in v100=16GiB") from None
