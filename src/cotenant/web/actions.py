"""What operators can do through the page: pause, resume, evict and set."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.client.commands import evict, set_paused, set_tenant
from cotenant.node.directories import Directories
from cotenant.units.text import parse_duration, parse_share, parse_size

_Text = Annotated[str, msgspec.Meta(max_length=64)]


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of the page; values are texts with units, as on the command line."""

    action: str
    tenant: _Text
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    slo: _Text | None = None
    share: _Text | None = None
    memory: _Text | None = None


def decode_action(body: bytes) -> Action:
    """Return the action in the body of a request; raise `ConfigError` if it is none."""
    try:
        return msgspec.json.decode(body, type=Action)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError("action", "", f"this is no action: {error}") from None


def carry_out(directories: Directories, action: Action) -> dict[str, Any]:
    """Carry out an action and return the tenants that it changed."""
    match action.action:
        case "pause" | "resume":
            done = set_paused(directories, [action.tenant], all_offline=False, paused=action.action == "pause")
        case "evict":
            done = evict(directories, [action.tenant], None)
        case "set":
            done = set_tenant(
                directories,
                action.tenant,
                priority=action.priority,
                slo_ns=None if not action.slo else parse_duration(action.slo, field="slo"),
                share_ppm=None if not action.share else parse_share(action.share, field="share"),
                memory_bytes=None if not action.memory else parse_size(action.memory, field="memory"),
            )
        case other:
            raise ConfigError("action", other, "choose pause, resume, evict or set")
    return {"tenants": done.tenants}
