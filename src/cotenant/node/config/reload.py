"""Which fields of the config a running node can change, and what differs between two configs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from cotenant.node.config.file import Config, plain
from cotenant.units.text import counted

_SECTIONS: Final = ("directories", "node", "protect", "control", "operators")
"""The sections of a node; the others concern commands, which read the config at each start."""
_LIVE_NODE_FIELDS: Final = frozenset(
    (
        "gate",
        "bound",
        "delay",
        "patience",
        "switch",
        "spin",
        "sms",
        "grace",
        "idle_exit",
        "place",
        "admit",
        "unmet",
        "log",
    )
)
_FIXED_FIELDS: Final = frozenset(("protect.probe", "control.mps_share"))
"""Fields of the sections that otherwise change while the node runs."""


class ConfigDifference(NamedTuple):
    """The differences between the config in force and a new one."""

    in_force: Config
    """The config with those of the new values that can change while the node runs."""
    applied: list[str]
    """The fields that changed, as section.field."""
    needs_restart: list[str]
    """The fields that keep their value until the node is restarted."""


def is_live(section: str, field: str) -> bool:
    """Return whether a field can change while the node runs."""
    if section == "node":
        return field in _LIVE_NODE_FIELDS
    return section in ("protect", "control", "operators") and f"{section}.{field}" not in _FIXED_FIELDS


def difference(before: Config, after: Config) -> ConfigDifference:
    """Return what changes if the config `after` is applied to a node that runs with `before`."""
    applied: list[str] = []
    needs_restart: list[str] = []
    sections: dict[str, Any] = {}
    for section in _SECTIONS:
        old, new = getattr(before, section), getattr(after, section)
        changed = [field for field in new.__struct_fields__ if getattr(old, field) != getattr(new, field)]
        live = [field for field in changed if is_live(section, field)]
        applied += [f"{section}.{field}" for field in live]
        needs_restart += [f"{section}.{field}" for field in changed if field not in live]
        sections[section] = msgspec.structs.replace(old, **{field: getattr(new, field) for field in live})
    if before.limits != after.limits:
        applied.append("limits")
        sections["limits"] = after.limits
    if before.gpu != after.gpu:
        needs_restart.append("gpu")
    return ConfigDifference(msgspec.structs.replace(before, **sections), applied, needs_restart)


def describe_changes(config: Config, fields: list[str]) -> str:
    """Return the new values of these fields, as the config file writes them."""
    texts = []
    for name in fields:
        section, _, field = name.partition(".")
        if field:
            texts.append(f"{name} = {plain(getattr(getattr(config, section), field))}")
        else:
            texts.append(f"{counted(len(getattr(config, section)), 'table')} of {name}")
    return ", ".join(texts)
