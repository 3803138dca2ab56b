"""Is a scenario a function of its seed, and does every bad one get one sentence?"""

from pathlib import Path

import pytest

from cotenant.apps.simulate import simulate, simulate_file
from cotenant.errors import ConfigError
from cotenant.format.scenario import decode_scenario

WORLD = 'seed = 1\nduration = "1s"\n'
SORT = WORLD + '[[tenants]]\nname = "a"\ncount = 1\n'

# name: the text, the line of the mistake, its field
BAD_SCENARIOS = {
    "a priority that no tenant can have": (SORT + "priority = 42\n", 6, "tenants[0].priority"),
    "a negative priority": (SORT + "priority = -1\n", 6, "tenants[0].priority"),
    "an objective for offline work": (SORT + 'slo = "1s"\n', 6, "tenants[0].slo"),
    "a name that no task can have": (WORLD + f'[[tenants]]\nname = "{"a" * 600}"\ncount = 1\n', 4, "tenants[0].name"),
    "no name": (WORLD + '[[tenants]]\nname = ""\ncount = 1\n', 4, "tenants[0].name"),
}


@pytest.mark.parametrize("name", BAD_SCENARIOS)
def test_a_bad_scenario_gets_one_sentence(name: str) -> None:
    text, line, field = BAD_SCENARIOS[name]
    with pytest.raises(ConfigError) as caught:
        decode_scenario(text, "world.toml")
    assert (caught.value.where, caught.value.field) == (f"world.toml:{line}", field)
    assert "\n" not in str(caught.value)


def test_a_tenant_comes_back_once_from_two_quick_deaths_of_the_node() -> None:
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
    assert (outcome.granted, outcome.freed, outcome.refused, outcome.still_here) == (10, 10, 0, 0)


def test_a_journal_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    world = tmp_path / "world.toml"
    world.write_text(SORT, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        simulate_file(world, None, str(tmp_path / "nowhere" / "journal"), None)


def test_a_scenario_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    for path in (tmp_path, tmp_path / "none.toml", tmp_path / "latin.toml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            simulate_file(path, None, "", None)
