"""Replay of a journal through the present state machine, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cotenant.cluster.decision_log import describe_cluster_turn
from cotenant.cluster.journal import ClusterJournalReader, is_cluster_journal
from cotenant.cluster.snapshot import encode_snapshot
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.errors import ConfigError
from cotenant.node.decision_log import describe_turn
from cotenant.node.journal import NodeJournalReader
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import Divergence, replay
from cotenant.runner.journal import JournalDamageError


class ReplayReport(msgspec.Struct, frozen=True):
    """Result of a replay."""

    file: str
    turns: int
    actions: int
    reproduced: bool
    torn_bytes: int
    diverged_at: int | None = None
    recorded: str = ""
    actual: str = ""
    damage: str = ""


class _Kind(NamedTuple):
    """State machine, reader and text form for one kind of journal."""

    machine: Any
    reader: Any
    describe: Callable[[Any, Any, Any], str]


def _kind_of(path: Path) -> _Kind:
    """Return the kind of a journal by its first event: the events of nodes and clusters differ."""
    with path.open("rb") as file:
        if is_cluster_journal(file.read):
            return _Kind(ClusterMachine(), ClusterJournalReader, describe_cluster_turn)
    return _Kind(NodeMachine(), NodeJournalReader, describe_turn)


def replay_file(path: Path, report: Callable[[str], None] | None = None, snapshot: Path | None = None) -> ReplayReport:
    """Replay one journal; `report` receives a line per turn, `snapshot` the final state of a cluster."""
    actions = 0

    def turns(reader: Iterable[Any]) -> Iterator[Any]:
        nonlocal actions
        for turn in reader:
            actions += len(turn.actions)
            if report is not None:
                report(describe(turn.now, turn.event, turn.actions))
            yield turn

    try:
        machine, make_reader, describe = _kind_of(path)
        file = path.open("rb")
    except OSError as error:
        raise ConfigError("journal", str(path), f"cannot be read: {error.strerror}; check the path") from None
    if snapshot is not None and not isinstance(machine, ClusterMachine):
        raise ConfigError("--snapshot", str(snapshot), "is for the journal of a cluster; this is a node's")
    with file:
        reader = make_reader(file.read)
        try:
            replay(machine, turns(reader))
        except Divergence as divergence:
            return ReplayReport(
                str(path),
                divergence.number,
                actions,
                reproduced=False,
                torn_bytes=0,
                diverged_at=divergence.number,
                recorded=describe(divergence.turn.now, divergence.turn.event, divergence.turn.actions),
                actual=describe(divergence.turn.now, divergence.turn.event, divergence.actual),
            )
        except OSError as error:
            raise ConfigError("journal", str(path), f"cannot be read: {error.strerror}; check the path") from None
        except JournalDamageError as damage:
            if not reader.turns:
                raise ConfigError("journal", str(path), f"{damage}") from None
            return ReplayReport(str(path), reader.turns, actions, reproduced=False, torn_bytes=0, damage=str(damage))
    if not reader.turns and not reader.torn_bytes:
        raise ConfigError("journal", str(path), "holds no turn; name the journal of a node or a cluster that ran")
    machine.check()
    if snapshot is not None:
        snapshot.write_bytes(encode_snapshot(machine.snapshot(), reader.last_instant))
    return ReplayReport(str(path), reader.turns, actions, reproduced=True, torn_bytes=reader.torn_bytes)
