"""Wires `cotenant replay`: the recorded events through today's machine, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cotenant.errors import ConfigError
from cotenant.format.cluster_log import describe_cluster_turn
from cotenant.format.journal import ClusterReader, JournalDamageError, TurnReader, is_of_cluster
from cotenant.format.log import describe_turn
from cotenant.format.snapshot import encode_snapshot
from cotenant.host import Divergence, replay
from cotenant.machine.cluster import ClusterMachine
from cotenant.machine.node import NodeMachine


class ReplayReport(msgspec.Struct, frozen=True):
    """What a replay found."""

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
    """Whose journal it is."""

    machine: Any
    reader: Any
    describe: Callable[[Any, Any, Any], str]


def _kind_of(path: Path) -> _Kind:
    """By the first event: a node's journal and a cluster's have none in common."""
    with path.open("rb") as file:
        if is_of_cluster(file.read):
            return _Kind(ClusterMachine(), ClusterReader, describe_cluster_turn)
    return _Kind(NodeMachine(), TurnReader, describe_turn)


def replay_file(path: Path, say: Callable[[str], None] | None = None, snapshot: Path | None = None) -> ReplayReport:
    """Replay one journal; `say` gets one line per turn, `snapshot` the state of a cluster at the end."""
    actions = 0

    def turns(reader: Iterable[Any]) -> Iterator[Any]:
        nonlocal actions
        for turn in reader:
            actions += len(turn.actions)
            if say is not None:
                say(describe(turn.now, turn.event, turn.actions))
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
        except Divergence as found:
            return ReplayReport(
                str(path),
                found.number,
                actions,
                reproduced=False,
                torn_bytes=0,
                diverged_at=found.number,
                recorded=describe(found.turn.now, found.turn.event, found.turn.actions),
                actual=describe(found.turn.now, found.turn.event, found.actual),
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
