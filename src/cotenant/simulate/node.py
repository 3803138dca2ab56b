"""Simulation of a node scenario, and counts of what happened to its tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from cotenant.errors import ConfigError
from cotenant.node.decision_log import describe_turn
from cotenant.node.model.action import NO_PEER, Action, IssueGrant, Refuse, Revoke
from cotenant.node.model.event import Event
from cotenant.node.sim.node import SimNode
from cotenant.node.sim.scenario import Scenario, decode_scenario
from cotenant.node.sim.traffic import Traffic
from cotenant.node.state.node import NodeMachine
from cotenant.runner.atomic_file import replace_file
from cotenant.runner.journal_memory import SimJournal
from cotenant.runner.sim_loop import SimLoop
from cotenant.units.instant import Instant


class Outcome(msgspec.Struct, frozen=True):
    """Results of a scenario."""

    seed: int
    turns: int
    granted: int
    resumed: int
    refused: int
    freed: int
    node_starts: int
    remaining: int
    endings: dict[str, int]


def simulate(scenario: Scenario, report: Callable[[str], None] | None = None) -> tuple[Outcome, bytes]:
    """Return the results and the journal; `report` receives a line per turn."""
    loop = SimLoop()
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    generations: set[tuple[int, int]] = set()

    def watch(now: Instant, event: Event, actions: list[Action]) -> None:
        counts["turns"] += 1
        for action in actions:
            if isinstance(action, IssueGrant) and action.peer != NO_PEER:
                key = (action.grant.slot, action.grant.generation)
                counts["resumed" if key in generations else "granted"] += 1
                generations.add(key)
            elif isinstance(action, Refuse):
                counts["refused"] += 1
            elif isinstance(action, Revoke):
                counts["freed"] += 1
                endings[action.ending] += 1
        if report is not None:
            report(describe_turn(now, event, actions))

    node = SimNode(loop, NodeMachine, scenario.settings(), watch, SimJournal(scenario.node.journal_limit))
    traffic = Traffic(loop, node, scenario.seed)
    loop.at(0, node.start, None)
    for population in scenario.tenants:
        traffic.add(population)
    for command in scenario.commands:
        traffic.command(command)
    for device_fault in scenario.device_faults:
        traffic.device_fault(device_fault.events(int(scenario.gpu[device_fault.gpu].memory)))
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
        remaining=counts["granted"] - counts["freed"],
        endings=dict(sorted(endings.items())),
    )
    return outcome, node.journal.content()


def read_scenario(path: Path) -> str:
    """Return the text of a scenario; raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError("scenario", str(path), f"cannot be read: {reason}; check the path") from None


def simulate_file(path: Path, seed: int | None, journal: str, report: Callable[[str], None] | None) -> Outcome:
    """Simulate the scenario in a file, with another seed if given; write its journal if `journal` names a file."""
    scenario = decode_scenario(read_scenario(path), str(path))
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    outcome, content = simulate(scenario, report)
    if journal:
        try:
            replace_file(Path(journal), content)
        except OSError as error:
            raise ConfigError("--journal", journal, f"cannot be written: {error.strerror}; choose another") from None
    return outcome
