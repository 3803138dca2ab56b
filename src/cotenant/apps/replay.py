"""Wires `cotenant replay`: the recorded events through today's machine, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError
from cotenant.format.journal import JournalDamageError, Turn, TurnReader
from cotenant.format.log import describe_turn
from cotenant.host import Divergence, replay
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


def replay_file(path: Path, say: Callable[[str], None] | None = None) -> ReplayReport:
    """Replay one journal; `say` gets one line per turn."""
    actions = 0
    machine = NodeMachine()

    def turns(reader: TurnReader) -> Iterator[Turn]:
        nonlocal actions
        for turn in reader:
            actions += len(turn.actions)
            if say is not None:
                say(describe_turn(turn.now, turn.event, turn.actions))
            yield turn

    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError("journal", str(path), f"cannot be read: {error.strerror}; check the path") from None
    with file:
        reader = TurnReader(file.read)
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
                recorded=describe_turn(found.turn.now, found.turn.event, found.turn.actions),
                actual=describe_turn(found.turn.now, found.turn.event, found.actual),
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
