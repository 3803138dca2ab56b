"""Replay of a journal through the present state machine, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.decision_log import describe_turn
from cotenant.node.journal import NodeJournalReader, NodeTurn
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


def replay_file(path: Path, report: Callable[[str], None] | None = None) -> ReplayReport:
    """Replay one journal; `report` receives a line per turn."""
    actions = 0

    def turns(reader: Iterable[NodeTurn]) -> Iterator[NodeTurn]:
        nonlocal actions
        for turn in reader:
            actions += len(turn.actions)
            if report is not None:
                report(describe_turn(turn.now, turn.event, turn.actions))
            yield turn

    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError("journal", str(path), f"cannot be read: {error.strerror}; check the path") from None
    machine = NodeMachine()
    with file:
        reader = NodeJournalReader(file.read)
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
                recorded=describe_turn(divergence.turn.now, divergence.turn.event, divergence.turn.actions),
                actual=describe_turn(divergence.turn.now, divergence.turn.event, divergence.actual),
            )
        except OSError as error:
            raise ConfigError("journal", str(path), f"cannot be read: {error.strerror}; check the path") from None
        except JournalDamageError as damage:
            if not reader.turns:
                raise ConfigError("journal", str(path), f"{damage}") from None
            return ReplayReport(str(path), reader.turns, actions, reproduced=False, torn_bytes=0, damage=str(damage))
    if not reader.turns and not reader.torn_bytes:
        raise ConfigError("journal", str(path), "holds no turn; name the journal of a node that ran")
    machine.check()
    return ReplayReport(str(path), reader.turns, actions, reproduced=True, torn_bytes=reader.torn_bytes)
