"""Runs a scenario under the simulated clock and counts what became of everybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from cotenant.domain.action import NO_PEER, Action, Grant, Refuse, Revoke
from cotenant.domain.event import Event
from cotenant.domain.instant import Instant
from cotenant.errors import ConfigError
from cotenant.format.log import describe_turn
from cotenant.format.scenario import Scenario, decode_scenario
from cotenant.machine.node import NodeMachine
from cotenant.sim.journal import SimJournal
from cotenant.sim.loop import SimLoop
from cotenant.sim.node import SimNode
from cotenant.sim.traffic import Traffic


class Outcome(msgspec.Struct, frozen=True):
    """What a scenario came to."""

    seed: int
    turns: int
    granted: int
    resumed: int
    refused: int
    freed: int
    node_starts: int
    still_here: int
    endings: dict[str, int]


def simulate(scenario: Scenario, say: Callable[[str], None] | None = None) -> tuple[Outcome, bytes]:
    """The outcome and the journal; `say` gets one line per turn."""
    loop = SimLoop()
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    generations: set[tuple[int, int]] = set()

    def watch(now: Instant, event: Event, actions: list[Action]) -> None:
        counts["turns"] += 1
        for action in actions:
            if isinstance(action, Grant) and action.peer != NO_PEER:
                key = (action.terms.slot, action.terms.generation)
                counts["resumed" if key in generations else "granted"] += 1
                generations.add(key)
            elif isinstance(action, Refuse):
                counts["refused"] += 1
            elif isinstance(action, Revoke):
                counts["freed"] += 1
                endings[action.ending] += 1
        if say is not None:
            say(describe_turn(now, event, actions))

    node = SimNode(loop, NodeMachine, scenario.settings(), watch, SimJournal(scenario.node.journal_limit))
    traffic = Traffic(loop, node, scenario.seed)
    loop.at(0, node.start, None)
    for population in scenario.tenants:
        traffic.add(population)
    for wish in scenario.wishes:
        traffic.wish(wish)
    for trouble in scenario.troubles:
        traffic.trouble(trouble.events(int(scenario.gpu[trouble.gpu].memory)))
    traffic.kill_node(scenario.faults)
    loop.run(scenario.duration)
    assert isinstance(node.journal, SimJournal)
    outcome = Outcome(
        seed=scenario.seed,
        turns=counts["turns"],
        granted=counts["granted"],
        resumed=counts["resumed"],
        refused=counts["refused"],
        freed=counts["freed"],
        node_starts=node.starts,
        still_here=counts["granted"] - counts["freed"],
        endings=dict(sorted(endings.items())),
    )
    return outcome, node.journal.content()


def read_scenario(path: Path) -> str:
    """The text of a scenario; ConfigError where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError("scenario", str(path), f"cannot be read: {reason}; check the path") from None


def simulate_file(path: Path, seed: int | None, journal: str, say: Callable[[str], None] | None) -> Outcome:
    """The scenario of a file, with another seed and its journal kept if asked."""
    scenario = decode_scenario(read_scenario(path), str(path))
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    outcome, content = simulate(scenario, say)
    if journal:
        try:
            Path(journal).write_bytes(content)
        except OSError as error:
            raise ConfigError("--journal", journal, f"cannot be written: {error.strerror}; choose another") from None
    return outcome
