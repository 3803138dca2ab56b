"""Configuration of access: who operates the node, and what the tenants of each user may be."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.node.model.event import SLOTS_LIMIT
from cotenant.units.toml import Section, ShareOfWhole, SizeBytes

EVERYBODY: Final = "*"
"""The user of a table of limits that applies to all users."""


class OperatorsConfig(Section, frozen=True):
    """Who may use operator.sock, besides the user that runs the node."""

    users: Annotated[
        tuple[str, ...], Meta(description="users that operate the node, by name or number, besides its own user")
    ] = ()
    groups: Annotated[
        tuple[str, ...], Meta(description="groups whose members operate the node, by name or number")
    ] = ()


class LimitsConfig(Section, frozen=True):
    """What the tenants of a user may be; the first table that names the user or one of its groups applies."""

    user: Annotated[str, Meta(description='the user, by name or number, or "*" for everybody')] = ""
    group: Annotated[str, Meta(description="instead of a user: a group, by name or number")] = ""
    kinds: Annotated[tuple[Kind, ...], Meta(description="the kinds of tenants that the user may run")] = tuple(Kind)
    priority: Annotated[
        int, Meta(ge=0, le=9, description="the highest priority of its tenants, from 0 (highest) to 9")
    ] = 0
    memory: Annotated[
        SizeBytes | None, Meta(description="device memory that its tenants may reserve in total; absent: no limit")
    ] = None
    share: Annotated[
        ShareOfWhole | None,
        Meta(description="share of compute that its tenants may reserve in total; absent: no limit"),
    ] = None
    tenants: Annotated[
        int,
        Meta(ge=0, le=SLOTS_LIMIT, description="number of its tenants at a time; default: as many as there are slots"),
    ] = SLOTS_LIMIT


def validate_access(operators: OperatorsConfig, limits: tuple[LimitsConfig, ...]) -> None:
    """Reject empty names, and tables of limits that name nobody or both a user and a group."""
    for field, names in (("users", operators.users), ("groups", operators.groups)):
        for name in names:
            if not name or name == EVERYBODY:
                raise ConfigError(f"operators.{field}", name, "name one user or group, or remove it")
    for index, table in enumerate(limits):
        if bool(table.user) == bool(table.group):
            value = f"{table.user},{table.group}" if table.user else ""
            raise ConfigError(f"limits[{index}].user", value, "name either a user or a group")
        if not table.kinds:
            raise ConfigError(f"limits[{index}].kinds", [], "name at least one kind, or set tenants = 0")
