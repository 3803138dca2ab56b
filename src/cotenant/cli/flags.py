"""Command-line flags for the fields of the config: their names, help and headings, and how they override the file."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.config.access import OperatorsConfig
from cotenant.node.config.control import ControlConfig
from cotenant.node.config.file import (
    Config,
    DirectoriesConfig,
    GpuConfig,
    NodeConfig,
    RunConfig,
    plain,
)
from cotenant.node.config.protection import ProtectConfig
from cotenant.units.toml import DurationNs, Section, ShareOfWhole, SizeBytes, decode_quantity, explain_value, line_of

FieldName: TypeAlias = tuple[str, str]
"""Section and field, as in ("node", "slots")."""

NO_GPUS: Final = "none"
"""The value of --gpu that means: share no GPU, and do not detect any."""
SECTIONS: Final[dict[str, type[Section]]] = {
    "directories": DirectoriesConfig,
    "node": NodeConfig,
    "operators": OperatorsConfig,
    "run": RunConfig,
    "protect": ProtectConfig,
    "control": ControlConfig,
}


SECTION_TITLES: Final = {
    "directories": "Files",
    "node": "Daemon",
    "operators": "Operators",
    "run": "Tenant",
    "protect": "Protection",
    "control": "Online-share control",
}
"""The heading in the help for the flags of each section."""
_TOPICS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "node": {
        "Launch gate": ("gate", "bound", "delay", "patience", "switch", "spin", "sms"),
        "Placement and admission": ("place", "admit", "unmet"),
    },
    "run": {
        "Measurement": ("hook", "measure", "sample", "unknown", "trace"),
        "Collectives": ("gang", "ranks"),
        "Eviction and restart": ("grace", "on_pressure", "restart", "restart_delay", "restart_well"),
    },
}
"""Fields of the long sections that have a heading of their own."""
_FLAG_NAMES: Final[dict[FieldName, str]] = {
    ("directories", "runtime"): "runtime-dir",
    ("directories", "state"): "state-dir",
    ("node", "grace"): "reconnect-grace",
    ("operators", "users"): "operator-users",
    ("operators", "groups"): "operator-groups",
}
"""Flags that are not named like their field, because another command gives the field's name another meaning."""


class Flag(msgspec.Struct, frozen=True):
    """The flag of one field of the config."""

    option: str
    field: FieldName
    metavar: str
    about: str
    """The help text, which is the description of the field."""
    default: str
    """The default value as text for the help; empty if the default means that the field is not set."""
    heading: str
    """The heading in the help."""


def option_of(section: str, field: str) -> str:
    """Return the flag of a field."""
    return f"--{_FLAG_NAMES.get((section, field), field.replace('_', '-'))}"


@functools.cache
def _fields_of(section: str) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a section; reading their types takes most of the time of parsing a command line."""
    return msgspec.structs.fields(SECTIONS[section])


@functools.cache
def flags_of(section: str) -> tuple[Flag, ...]:
    """Return the flags of a section in the order of its fields; the kind of a tenant is --online or --offline."""
    flags = []
    for field in _fields_of(section):
        if (section, field.name) == ("run", "kind"):
            continue
        metas = [meta for meta in getattr(field.type, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
        about = "".join(meta.description or "" for meta in metas)
        default = plain(field.default)
        default_text = "" if default in (None, "", "0s", "0B", "0%", []) else f" (default {default})"
        option, metavar = option_of(section, field.name), _metavar(section, field)
        about = about[:1].upper() + about[1:].rstrip(".") if not about.startswith("soft:") else about
        flags.append(Flag(option, (section, field.name), metavar, about, default_text, _heading(section, field.name)))
    return tuple(flags)


def _heading(section: str, field: str) -> str:
    topics = _TOPICS.get(section, {})
    return next((title for title, fields in topics.items() if field in fields), SECTION_TITLES[section])


def _metavar(section: str, field: Any) -> str:
    """Return the placeholder of the value in the help."""
    kinds: dict[object, str] = {DurationNs: "DURATION", SizeBytes: "SIZE", ShareOfWhole: "PERCENT", int: "N"}
    inner = getattr(field.type, "__origin__", field.type)
    if _is_list(field.type):
        return f"{field.name.upper()[:-1]},..."
    if inner is str:
        return "DIR" if section == "directories" else field.name.upper()
    return kinds.get(inner, "N")


def _is_list(kind: Any) -> bool:
    """Return whether a field is a list, which a flag gives as words separated by commas."""
    return typing.get_origin(getattr(kind, "__origin__", kind)) is tuple


def overlay(config: Config, flags: Mapping[FieldName, Any], gpus: Sequence[str] = ()) -> Config:
    """Return the config with the values of the command line in place of those of the file."""
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        values = {}
        for field in _fields_of(name) if any(section == name for section, _ in flags) else ():
            if (name, field.name) in flags:
                values[field.name] = _value_of(name, kind, field, flags[name, field.name])
        sections[name] = msgspec.structs.replace(getattr(config, name), **values)
    if list(gpus) == [NO_GPUS]:
        sections["node"] = msgspec.structs.replace(sections["node"], find="no")
        sections["gpu"] = ()
    elif gpus:
        sections["gpu"] = tuple(_gpu_of(text) for text in gpus)
    return msgspec.structs.replace(config, **sections)


def sources(text: str, where: str, flags: Mapping[FieldName, Any]) -> dict[str, str]:
    """Return the source of each value for `config show`: a flag, a line of the file, or the default."""
    source = {}
    import tomllib  # only if there is a config file

    document = tomllib.loads(text)
    for section, kind in SECTIONS.items():
        for field in kind.__struct_fields__:
            if (section, field) in flags:
                source[f"{section}.{field}"] = "flag"
            elif field in document.get(section, {}):  # for a field of an inline table this is the line of the table
                source[f"{section}.{field}"] = f"{where}:{line_of(text, [section, field])}"
            else:
                source[f"{section}.{field}"] = "default"
    return source


def _value_of(name: str, section: type[Section], field: Any, value: Any) -> Any:
    option = option_of(name, field.name)
    if not value.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        raise ConfigError(option, value, "is not UTF-8 text; write it in UTF-8")
    if _is_list(field.type):
        value = [name.strip() for name in value.split(",") if name.strip()]
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
