"""The turns of a cluster controller's journal."""

from __future__ import annotations

from typing import Final, TypeAlias, get_args

import msgspec

from cotenant.cluster.model.event import ClusterAction, ClusterEvent
from cotenant.runner.journal import JournalReader, ReadBytes, Turn, first_event_tag

ClusterTurn: TypeAlias = Turn[ClusterEvent, ClusterAction]
"""One turn of a cluster controller."""

TURN_LIMIT_BYTES: Final = 1 << 30
"""More than a segment's head takes with every job that a cluster remembers, for commands of usual length."""

_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(ClusterEvent))
_decoder: msgspec.msgpack.Decoder[ClusterTurn] = msgspec.msgpack.Decoder(Turn[ClusterEvent, ClusterAction])


class ClusterJournalReader(JournalReader[ClusterTurn]):
    """Reads the turns of a cluster controller's journal."""

    def __init__(self, read: ReadBytes) -> None:
        """Read nothing yet."""
        super().__init__(read, _decoder, TURN_LIMIT_BYTES)


def is_cluster_journal(read: ReadBytes) -> bool:
    """Return whether the first turn of a journal is a cluster's; False for a journal that cannot be read."""
    return first_event_tag(read, TURN_LIMIT_BYTES) in _TAGS
