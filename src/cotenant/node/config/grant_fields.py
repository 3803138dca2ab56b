"""The fields with which a program joins by itself: texts of environment variables, and lines of a grant file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import Limit
from cotenant.node.config.file import RunConfig
from cotenant.node.model.tenant import COMMAND_LIMIT, DEFAULT_PRIORITY, TenantSpec
from cotenant.units.toml import decode_quantity, explain_value

FIELDS: Final = ("kind", "priority", "slo", "memory", "share", "task", "name", "gpus")
TOKEN_FIELD: Final = "token"  # noqa: S105  the name of the field
_SOCKET_FIELD: Final = "socket"
"""Only the hook reads it."""
_BARE_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


def merge_fields(fields: Mapping[str, str], grant: str) -> dict[str, str]:
    """Return the fields of a grant file, overridden by those of variables; raise `ConfigError` for an unknown one.

    A grant file has lines `key = value`; a line that begins with # is a comment.
    """
    merged: dict[str, str] = {}
    for number, line in enumerate(grant.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in text.partition("="))
        if equals and key == _SOCKET_FIELD:
            continue
        if not equals or key not in (*FIELDS, TOKEN_FIELD):
            known = ", ".join((*FIELDS, TOKEN_FIELD))
            raise ConfigError("COTENANT_GRANT", text[:80], f"line {number} must be key = value, with one of {known}")
        merged[key] = value.strip("\"'")
    for key, value in fields.items():
        if key not in FIELDS:
            raise ConfigError(_variable(key), value, f"there is no such field; use one of {', '.join(FIELDS)}")
        merged[key] = value
    return merged


def spec_of_fields(fields: Mapping[str, str], command: str, gpu: str = "") -> TenantSpec:
    """Return what a program requests by its fields; raise `ConfigError` that names the variable of a wrong one."""
    values = {}
    for field in msgspec.structs.fields(RunConfig):
        if field.name in FIELDS and fields.get(field.name, ""):
            values[field.name] = _value(field.name, field.type, fields[field.name])
    run = msgspec.structs.replace(RunConfig(), **values)
    if run.slo and run.kind is Kind.OFFLINE:
        remedy = "an offline tenant has no latency objective; set COTENANT_KIND=online or omit it"
        raise ConfigError(_variable("slo"), fields["slo"], remedy)
    return TenantSpec(
        kind=run.kind,
        priority=DEFAULT_PRIORITY[run.kind] if run.priority is None else run.priority,
        name=run.name,
        slo_ns=int(run.slo),
        memory_bytes=int(run.memory),
        share_ppm=int(run.share),
        task=(run.task or command)[:COMMAND_LIMIT],
        command=command[:COMMAND_LIMIT],
        gpu=gpu,
        gpu_count=run.gpus,
        limit=Limit(run.limit),
    )


def _value(name: str, kind: object, text: str) -> object:
    if name == "share" and _BARE_NUMBER.fullmatch(text):
        text += "%"
    try:
        return msgspec.convert(text, kind, dec_hook=decode_quantity, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_variable(name), text, explain_value(str(error), RunConfig, name)) from None


def _variable(field: str) -> str:
    return f"COTENANT_{field.upper()}"
