"""Tests of node and kernel scenarios."""

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.node.config.file import GpuConfig, NodeConfig
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import NO_PEER, IssueGrant, Revoke
from cotenant.node.sim.scenario import FaultConfig, PopulationConfig, Scenario, decode_scenario
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import replay
from cotenant.runner.journal import MAGIC, encode_turn
from cotenant.simulate.node import simulate, simulate_file
from cotenant.simulate.replay import replay_file
from cotenant.units.toml import Count, DurationNs, ShareOfWhole, SizeBytes
from tests.support.effort import examples
from tests.support.tools import ROOT, run, run_or_fail

WORLD = 'seed = 1\nduration = "1s"\n'
ONE_GROUP = WORLD + '[[tenants]]\nname = "a"\ncount = 1\n'

# name: the text, the line of the mistake, its field
BAD_SCENARIOS = {
    "a priority that no tenant can have": (ONE_GROUP + "priority = 42\n", 6, "tenants[0].priority"),
    "a negative priority": (ONE_GROUP + "priority = -1\n", 6, "tenants[0].priority"),
    "an objective for offline work": (ONE_GROUP + 'slo = "1s"\n', 6, "tenants[0].slo"),
    "a name that no task can have": (WORLD + f'[[tenants]]\nname = "{"a" * 600}"\ncount = 1\n', 4, "tenants[0].name"),
    "no seed": ('duration = "1s"\n', None, "seed"),
    "a seed that is no number": ('seed = "a"\nduration = "1s"\n', 1, "seed"),
    "no duration": ("seed = 1\n", None, "duration"),
    "a duration without a unit": ("seed = 1\nduration = '5'\n", 2, "duration"),
    "an unknown key": (WORLD + "hours = 3\n", 3, "hours"),
    "an unknown key among the faults": (WORLD + "[faults]\nkills = 3\n", 4, "faults.kills"),
    "a negative count": (WORLD + "[faults]\nnode_kills = -1\n", 4, "faults.node_kills"),
    "a count beyond its limit": (WORLD + "[faults]\nnode_kills = 1000001\n", 4, "faults.node_kills"),
    "a count that is true": (ONE_GROUP + '[[tenants]]\nname = "b"\ncount = true\n', 8, "tenants[1].count"),
    "a bad unit in the second group": (
        ONE_GROUP + '[[tenants]]\nname = "b"\ncount = 1\nstay = "1x"\n',
        9,
        "tenants[1].stay",
    ),
    "slots beyond their limit": (WORLD + "[node]\nslots = 5000\n", 4, "node.slots"),
    "a bad gpu": (WORLD + '[[gpu]]\nname = "a"\nmemory = "16"\n', 5, "gpu[0].memory"),
    "an objective in the second group": (
        ONE_GROUP + '[[tenants]]\nname = "b"\ncount = 1\nkind = "offline"\nslo = "5ms"\n',
        10,
        "tenants[1].slo",
    ),
    "a command without an effect": (WORLD + '[[commands]]\nat = "1s"\n', 4, "commands[0]"),
    "two commands in one": (WORLD + '[[commands]]\nat = "1s"\npause = true\ngate = "open"\n', 4, "commands[0]"),
    "a priority without a tenant": (WORLD + '[[commands]]\nat = "1s"\npriority = 3\n', 4, "commands[0]"),
    "an objective without a tenant": (WORLD + '[[commands]]\nat = "1s"\nslo = "5ms"\n', 4, "commands[0]"),
    "an objective and a share": (
        WORLD + '[[commands]]\nat = "1s"\nname = "a"\nslo = "5ms"\nshare = "1%"\n',
        4,
        "commands[0]",
    ),
    "rules for one tenant": (WORLD + '[[commands]]\nat = "1s"\nname = "a"\ngate = "open"\n', 4, "commands[0]"),
    "a gate that is none": (WORLD + '[[commands]]\nat = "1s"\ngate = "ajar"\n', 5, "commands[0].gate"),
    "no TOML": ("seed = \n", 1, "TOML"),
    "no name": (WORLD + '[[tenants]]\nname = ""\ncount = 1\n', 4, "tenants[0].name"),
}


@pytest.mark.parametrize("name", BAD_SCENARIOS)
def test_invalid_scenario_is_reported_with_its_field_and_line(name: str) -> None:
    text, line, field = BAD_SCENARIOS[name]
    with pytest.raises(ConfigError) as caught:
        decode_scenario(text, "world.toml")
    where = "world.toml" if line is None else f"world.toml:{line}"
    assert (caught.value.where, caught.value.field) == (where, field)
    assert "\n" not in str(caught.value)


def test_share_and_objective_commands_take_effect_and_replay() -> None:
    world = (
        WORLD
        + """
        [[gpu]]
        name = "v100"
        memory = "16GiB"
        [[tenants]]
        name = "web"
        count = 1
        kind = "online"
        slo = "50ms"
        arrive = "1ms"
        [[commands]]
        at = "500ms"
        name = "web-0"
        slo = "20ms"
        [[commands]]
        at = "600ms"
        name = "web-0"
        share = "30%"
        [[commands]]
        at = "700ms"
        name = "web-0"
        slo = "0s"
    """
    )
    lines: list[str] = []
    _, journal = simulate(decode_scenario(world, "world.toml"), lines.append)
    for words in (
        "changes web-0: latency objective 20ms",
        "changes web-0: share 30%",
        "changes web-0: no latency objective",
    ):
        (line,) = (line for line in lines if words in line)
        assert "grant web-0 slot 0/1 on GPU 0" in line
        assert "confirm to peer" in line
    machine = NodeMachine()
    replay(machine, list(NodeJournalReader(io.BytesIO(journal).read)))
    (web,) = [view.tenant for view in machine.tenants()] or [departed.tenant for departed in machine.registry.departed]
    assert (web.grant.slo_ns, web.spec.slo_ns, web.grant.share_ppm) == (0, 0, 300_000)


def test_tenants_resume_once_after_quick_restarts_of_the_node() -> None:
    world = """
        seed = 1
        duration = "1h"
        [node]
        grace = "1s"
        [faults]
        node_kills = 20
        every = "20ms"
        away = "1ms"
        [[tenants]]
        name = "work"
        count = 10
        arrive = "10ms"
        stay = "100ms"
    """
    outcome, _ = simulate(decode_scenario(world, "world.toml"))
    assert (outcome.granted, outcome.freed, outcome.refused, outcome.remaining) == (10, 10, 0, 0)


def test_unwritable_journal_is_reported(tmp_path: Path) -> None:
    world = tmp_path / "world.toml"
    world.write_text(ONE_GROUP, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        simulate_file(world, None, str(tmp_path / "nowhere" / "journal"), None)


def test_unreadable_scenario_is_reported(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / "latin.toml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            simulate_file(path, None, "", None)


CHURN = ROOT / "scenarios" / "node-churn.toml"


def run_churn(seed: int | None = None, file: Path = CHURN) -> tuple[list[str], bytes]:
    scenario = decode_scenario(file.read_text(encoding="utf-8"), file.name)
    lines: list[str] = []
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    _, journal = simulate(scenario, lines.append)
    return lines, journal


# Every decision of these scenarios as last reviewed. After a change that is meant to change them:
#   .venv/bin/cotenant simulate scenarios/node-churn.toml --log --json | grep -v '^{' > scenarios/node-churn.log
# and read the diff as part of the change; likewise for the others.
@pytest.mark.parametrize("name", ["node-churn", "gate-changes", "protection"])
def test_decisions_equal_the_golden_log(name: str) -> None:
    file = ROOT / "scenarios" / f"{name}.toml"
    golden = file.with_suffix(".log").read_text(encoding="utf-8")
    assert "\n".join(run_churn(file=file)[0]) + "\n" == golden


def test_other_seeds_give_other_logs_and_journals() -> None:
    lines, journal = run_churn()
    others = [run_churn(seed) for seed in (8, 9)]
    assert len({tuple(lines), *(tuple(log) for log, _ in others)}) == 3
    assert len({journal, *(content for _, content in others)}) == 3


def test_log_and_journal_are_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    outputs = set()
    for hash_seed in ("0", "1", "42", "4294967295"):
        journal = tmp_path / f"journal-{hash_seed}"
        command = [
            sys.executable,
            "-m",
            "cotenant",
            "simulate",
            str(CHURN),
            "--verbose",
            "--json",
            "--journal",
            str(journal),
        ]
        log = run_or_fail(command, ROOT, {"PYTHONHASHSEED": hash_seed})
        outputs.add((log, journal.read_bytes()))
    assert len(outputs) == 1
    ((log, content),) = outputs
    *lines, outcome = log.splitlines()
    assert (lines, content) == run_churn()
    assert json.loads(outcome)["turns"] == len(lines)


def test_journal_of_a_scenario_replays(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    outcome = simulate_file(CHURN, None, str(journal), None)
    lines: list[str] = []
    report = replay_file(journal, lines.append)
    assert (report.reproduced, report.turns, report.torn_bytes, report.damage) == (True, outcome.turns, 0, "")
    assert "\n".join(lines) + "\n" == CHURN.with_suffix(".log").read_text(encoding="utf-8")


def test_replay_of_a_different_journal_names_the_turn(tmp_path: Path) -> None:
    _, content = run_churn()
    turns = list(NodeJournalReader(io.BytesIO(content).read))
    refused = next(number for number, turn in enumerate(turns, 1) if "Refuse" in str(turn.actions))
    journal = tmp_path / "journal"
    journal.write_bytes(content.replace(b"unreserved", b"not promised now", 1))
    report = replay_file(journal)
    assert (report.reproduced, report.turns, "checksum" in report.damage) == (False, refused - 1, True)
    journal.write_bytes(journal_with_empty_turn(turns, refused))
    report = replay_file(journal)
    assert (report.reproduced, report.diverged_at, report.damage) == (False, refused, "")
    assert report.recorded != report.actual


def journal_with_empty_turn(turns: list[NodeTurn], number: int) -> bytes:
    """Return the journal with no actions in one of the turns."""
    return MAGIC + b"".join(
        encode_turn(turn.now, turn.event, [] if at == number else turn.actions) for at, turn in enumerate(turns, 1)
    )


def test_invalid_scenario_ends_the_command_with_one_line(tmp_path: Path) -> None:
    world = tmp_path / "world.toml"
    world.write_text(ONE_GROUP + "priority = 42\n", encoding="utf-8")
    done = run([sys.executable, "-m", "cotenant", "simulate", world], ROOT)
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert f"{world}:6: tenants[0].priority = 42: " in done.stdout


# -- any world -------------------------------------------------------------------------------------------------


def milliseconds(least: int, most: int) -> st.SearchStrategy[DurationNs]:
    return st.integers(least, most).map(lambda number: DurationNs(number * 10**6))


populations = st.builds(
    PopulationConfig,
    name=st.sampled_from(["a", "b", "c"]),
    count=st.integers(0, 8).map(Count),
    kind=st.just(Kind.OFFLINE),
    priority=st.integers(0, 9),
    memory=st.sampled_from([0, 3, 8]).map(SizeBytes),
    share=st.sampled_from([0, 300_000, 10**6]).map(ShareOfWhole),
    arrive=milliseconds(0, 500),
    stay=milliseconds(0, 2000),
    crash=st.sampled_from([0, 500_000, 10**6]).map(ShareOfWhole),
)
worlds = st.builds(
    Scenario,
    seed=st.integers(0, 99),
    duration=st.sampled_from([DurationNs(2 * 10**9), DurationNs(600 * 10**9)]),
    node=st.builds(
        NodeConfig,
        slots=st.integers(1, 6),
        grace=milliseconds(0, 1500),
        place=st.sampled_from(["spread", "pack"]),
        admit=st.sampled_from(["reserve", "overcommit"]),
        journal_limit=st.sampled_from([SizeBytes(0), SizeBytes(2000), SizeBytes(1 << 40)]),
    ),
    faults=st.builds(
        FaultConfig,
        node_kills=st.integers(0, 8).map(Count),
        every=milliseconds(0, 500),
        away=milliseconds(0, 500),
    ),
    gpu=st.lists(st.builds(GpuConfig, name=st.just("g"), memory=st.just(SizeBytes(8))), max_size=2).map(tuple),
    tenants=st.lists(populations, max_size=3).map(tuple),
)


@settings(max_examples=examples(30, 600))
@given(worlds)
def test_no_tenant_is_lost_or_counted_twice_in_any_scenario(world: Scenario) -> None:
    outcome, journal = simulate(world)
    assert (outcome, journal) == simulate(world)
    machine = NodeMachine()
    turns = list(NodeJournalReader(io.BytesIO(journal).read))
    replay(machine, turns)
    machine.check()
    assert outcome.remaining == len(machine.tenants()) == outcome.granted - outcome.freed
    assert sum(outcome.endings.values()) == outcome.freed
    assert outcome.node_starts <= 1 + world.faults.node_kills
    if world.duration > DurationNs(10**11):  # long after the last tenant has ended
        assert outcome.remaining == 0
    if outcome.turns == len(turns):  # one segment: the journal is complete, so count in it
        done_actions = [action for turn in turns for action in turn.actions]
        granted = {
            (action.grant.slot, action.grant.generation)
            for action in done_actions
            if isinstance(action, IssueGrant) and action.peer != NO_PEER
        }
        freed = [(action.slot, action.generation) for action in done_actions if isinstance(action, Revoke)]
        assert (len(granted), len(freed)) == (outcome.granted, outcome.freed)
        assert granted.issuperset(freed)
        assert len(set(freed)) == len(freed)
