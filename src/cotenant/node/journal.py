"""The turns of a node's journal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cotenant.errors import WorldError
from cotenant.node.model.action import Action
from cotenant.node.model.event import Event, NodeRestored, NodeSettings, NodeStarted
from cotenant.runner.journal import JournalReader, ReadBytes, Turn
from cotenant.runner.journal_file import Recovery

NodeTurn: TypeAlias = Turn[Event, Action]
"""One turn of a node."""

TURN_LIMIT_BYTES: Final = 32 << 20
"""More than a segment's head takes when every slot is held by a tenant with the longest command."""

_decoder: msgspec.msgpack.Decoder[NodeTurn] = msgspec.msgpack.Decoder(Turn[Event, Action])


class NodeJournalReader(JournalReader[NodeTurn]):
    """Reads the turns of a node's journal."""

    def __init__(self, read: ReadBytes) -> None:
        """Read nothing yet."""
        super().__init__(read, _decoder, TURN_LIMIT_BYTES)


def last_settings(path: Path) -> NodeSettings | None:
    """Return the settings of the last node that wrote this journal; None where they cannot be read."""
    settings = None
    with contextlib.suppress(WorldError):
        for turn in Recovery(path, NodeJournalReader).turns():
            if isinstance(turn.event, NodeStarted | NodeRestored):
                settings = turn.event.settings
    return settings
