"""Every config round-trips through TOML, and every mistake is reported with its line and field."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotenant.cli.flags import sources
from cotenant.errors import ConfigError
from cotenant.node.config.file import Config, DirectoriesConfig, RunConfig, decode_config, encode_config
from tests.support.strategies import configs


@pytest.mark.parametrize("line", ['node.place = "spread\\n"', 'node.admit = "reserve\\n"', 'run.name = "web\\n"'])
def test_newline_after_a_word_is_not_accepted(line: str) -> None:
    with pytest.raises(ConfigError):
        decode_config(line, "here.toml")


HUGE_VALUES = {
    "an integer that Python will not read": "node.slots = " + "1" * 5000,
    "an integer that Python will not print": "node.slots = 0x" + "1" * 5000,
    "the same where text belongs": "node.grace = 0x" + "1" * 5000,
    "tables too deep to print": "a" + ".a" * 5000 + " = 1",
    "lists too deep to read": "a = " + "[" * 5000 + "]" * 5000,
    "inline tables without an end": "a = " + "{a = " * 5000,
}


@pytest.mark.parametrize("name", HUGE_VALUES)
def test_huge_value_is_reported_in_one_short_sentence(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config(HUGE_VALUES[name], "here.toml")
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_delete_character_round_trips() -> None:
    config = Config(run=RunConfig(task="a\x7fb"))
    assert decode_config(encode_config(config), "here.toml") == config


def test_path_that_is_not_utf8_is_encoded_with_replacement() -> None:
    shown = encode_config(Config(directories=DirectoriesConfig(state="/tmp/\udcff")))
    assert decode_config(shown, "here.toml").directories.state == "/tmp/?"


# By name: the text, the line of the mistake, and its field.
LOCATIONS = {
    "a quoted key with a dot": ('\n"a.b" = 1\n', 2, "a.b"),
    "a literal key": ("\nnode.'slots' = 0\n", 2, "node.slots"),
    "an escaped key": ('[node]\n"sl\\u006fts" = 0\n', 2, "node.slots"),
    "a key with a backtick": ('[node]\n"a`b" = 0\n', 2, "node.a`b"),
    "a line separator in a comment": ("# a\u2028b\x85c\n[node]\nslots = 0\n", 3, "node.slots"),
    "a text that looks like a table": ('run.task = """\n[node]\nslots = 0\n"""\n[node]\nslots = 0\n', 6, "node.slots"),
    "a literal that looks like a table": ("run.task = '''\n[node]\nslots = 0'''\n[node]\nslots = 0\n", 5, "node.slots"),
    "quotes in a comment": ('# """\n[node]\nslots = 0\n# """\n', 3, "node.slots"),
    "a table in an array": (
        '[[gpu]]\nname = "a"\nmemory = "1GiB"\n[[gpu]]\nname = "b"\nmemory = "1GiB"\n[gpu.more]\nx = 1\n',
        7,
        "gpu[1].more",
    ),
}


@pytest.mark.parametrize("name", LOCATIONS)
def test_mistake_is_reported_with_its_line(name: str) -> None:
    text, line, field = LOCATIONS[name]
    with pytest.raises(ConfigError) as caught:
        decode_config(text, "here.toml")
    assert (caught.value.where, caught.value.field) == (f"here.toml:{line}", field)


SOURCES = {
    "a table": ("[node]\nslots = 3\n", "here.toml:2"),
    "a dotted key": ("\n\nnode.slots = 3\n", "here.toml:3"),
    "an inline table": ("\nnode = { slots = 3 }\n", "here.toml:2"),
    "another field": ("[node]\ngrace = '1s'\n", "default"),
    "a text that looks like it": ("run.task = '''\n[node]\nslots = 3'''\n", "default"),
    "nothing": ("", "default"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_show_names_the_source_of_a_value(name: str) -> None:
    text, source = SOURCES[name]
    assert sources(text, "here.toml", {})["node.slots"] == source
    assert sources(text, "here.toml", {("node", "slots"): "9"})["node.slots"] == "flag"


@given(configs)
def test_every_config_round_trips(config: Config) -> None:
    shown = encode_config(config)
    assert decode_config(shown, "here.toml") == config
    assert encode_config(decode_config(shown, "here.toml")) == shown


@settings(max_examples=25)  # finding the sources of all fields takes a while
@given(configs)
def test_printed_config_reads_back_with_its_comments(config: Config) -> None:
    text = encode_config(config)
    shown = encode_config(config, sources(text, "here.toml", {("node", "slots"): "3"}))
    assert decode_config(shown, "here.toml") == config
    assert "  # flag" in shown
    assert "  # here.toml:" in shown


def test_empty_file_gives_the_defaults() -> None:
    assert decode_config("", "here.toml") == decode_config("# nothing\n[node]\n[run]\n", "here.toml") == Config()


TWO_GPUS = '[[gpu]]\nname = "a"\nmemory = "1GiB"\n\n[[gpu]] # the second\n'

# By name: the text, the line of the mistake, its field, and a part of the remedy.
MISTAKES = {
    "unknown section": ("\n[nodes]\nslots = 1\n", 2, "nodes", "no such field"),
    "unknown key at the top": ("slots = 1\n", 1, "slots", "no such field"),
    "unknown key in directories": ("[directories]\ncache = 'x'\n", 2, "directories.cache", "no such field"),
    "unknown key in node": ("[node]\nslots = 1\nslot = 1\n", 3, "node.slot", "no such field"),
    "unknown key in run": ("[run]\n\n\nprio = 1\n", 4, "run.prio", "no such field"),
    "unknown key in the first gpu": ("[[gpu]]\nname = 'a'\nmemory = '1B'\nx = 1\n", 4, "gpu[0].x", "no such field"),
    "unknown key in the second gpu": (TWO_GPUS + "name = 'b'\nmemory = '1B'\nx = 1\n", 8, "gpu[1].x", "no such field"),
    "no unit": ("[node]\ngrace = '5'\n", 2, "node.grace", "write a number and a unit"),
    "a number for a duration": ("[node]\ngrace = 5\n", 2, "node.grace", "write a number and a unit"),
    "a size for a duration": ("[node]\nidle_exit = '5GiB'\n", 2, "node.idle_exit", "write a number and a unit"),
    "a duration for a size": ("[run]\nmemory = '5s'\n", 2, "run.memory", '"4GiB"'),
    "a share without percent": ("[run]\nshare = '0.3'\n", 2, "run.share", '"30%"'),
    "a share above the whole": ("[run]\nshare = '101%'\n", 2, "run.share", '"30%"'),
    "a size that is too large": ("[run]\nmemory = '9000000TiB'\n", 2, "run.memory", "too large"),
    "a wrong unit in the second gpu": (TWO_GPUS + 'name = "b"\nmemory = "16X"\n', 7, "gpu[1].memory", '"4GiB"'),
    "a missing field in the second gpu": (TWO_GPUS + 'name = "b"\n', 5, "gpu[1].memory", "required"),
    "an empty name of a gpu": (TWO_GPUS + 'name = ""\nmemory = "1B"\n', 6, "gpu[1].name", "length"),
    "text for a number": ("[node]\nslots = '8'\n", 2, "node.slots", "expected an integer, got text in quotes"),
    "a fraction for a number": ("[node]\nslots = 8.5\n", 2, "node.slots", "expected an integer"),
    "a boolean for a number": ("[node]\nslots = true\n", 2, "node.slots", "expected an integer"),
    "a number for text": ("[directories]\nstate = 1\n", 2, "directories.state", "expected text in quotes"),
    "a date for text": ("[run]\ntask = 2020-01-01\n", 2, "run.task", "expected text in quotes"),
    "a list for a table": ("\nnode = []\n", 2, "node", "expected a table"),
    "a number for a table": ("run = 1\n", 1, "run", "expected a table"),
    "a table for a list": ("[gpu]\nname = 'a'\n", 1, "gpu", "expected a list"),
    "a list in a list": ("gpu = [[]]\n", 1, "gpu[0]", "expected a table"),
    "slots below their limit": ("[node]\nslots = 0\n", 2, "node.slots", ">= 1"),
    "slots above their limit": ("[node]\nslots = 1025\n", 2, "node.slots", "<= 1024"),
    "a priority above its limit": ("[run]\npriority = 10\n", 2, "run.priority", "<= 9"),
    "no such policy": ("[node]\nplace = 'best'\n", 2, "node.place", "spread, pack or predict"),
    "no such kind": ("[run]\nkind = 'batch'\n", 2, "run.kind", "online"),
    "a name that cannot be": ("[run]\nname = 'a b'\n", 2, "run.name", "letters, digits"),
    "a name that is too long": (f"[run]\nname = '{'x' * 65}'\n", 2, "run.name", "length"),
    "a dotted key": ("\nnode.slots = 0\n", 2, "node.slots", ">= 1"),
    "a dotted key with spaces": ("\n\n node . slots = 0\n", 3, "node.slots", ">= 1"),
    "an inline table": ("# one\nnode = { slots = 0 }\n", 2, "node.slots", ">= 1"),
    "inline tables in a list": ("gpu = [\n{ name = 'a', memory = 1 },\n]\n", 1, "gpu[0].memory", '"4GiB"'),
    "a quoted key": ('[node]\n"slots" = 0\n', 2, "node.slots", ">= 1"),
    "a quoted table": ("\n[ \"node\" ]\n'slots'=0\n", 3, "node.slots", ">= 1"),
    "after comments that look like it": ("[node]\n# slots = 0\nslots = 0 # slots = 0\n", 3, "node.slots", ">= 1"),
    "after the same key elsewhere": (
        "[run]\nname = 'a'\n[[gpu]]\nname = ''\nmemory = '1B'\n",
        4,
        "gpu[0].name",
        "length",
    ),
    "windows line ends": ("[node]\r\n\r\nslots = 0\r\n", 3, "node.slots", ">= 1"),
    "no TOML": ("[node]\nslots = \n", 2, "TOML", "correct the line"),
    "a table twice": ("[node]\n[node]\n", 2, "TOML", "correct the line"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_has_line_field_and_remedy(name: str) -> None:
    text, line, field, remedy = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        decode_config(text, "here.toml")
    error = caught.value
    assert (error.where, error.field) == (f"here.toml:{line}", field)
    assert remedy in error.remedy
    assert "\n" not in str(error)


fragments = st.lists(
    st.sampled_from(
        [
            "[node]",
            "[[gpu]]",
            "[run]",
            "[gpu.x]",
            "slots",
            "name",
            "memory",
            "node.slots",
            '"run"',
            "'a.b'",
            "=",
            ".",
            "{",
            "}",
            "[",
            "]",
            ",",
            "1",
            "-1",
            "0x1f",
            "1e400",
            "nan",
            "true",
            "'5s'",
            '"4GiB"',
            '"\\u0041"',
            '"""',
            "'''",
            "#",
            "\n",
            " ",
            "1979-05-27T07:32:00Z",
            "07:32:00",
            "\r\n",
            "\t",
            "\x00",
            "\ufeff",
        ]
    ),
    max_size=20,
).map("".join)


@given(st.one_of(st.text(max_size=60), fragments))
@example("a = 1e99999")
@example("node.slots = 99999999999999999999999")
@example("[gpu]\n[gpu.a]\n")
@example("node = {}\n[node.slots]\n")
def test_any_text_is_a_config_or_an_error(text: str) -> None:
    try:
        config = decode_config(text, "here.toml")
    except ConfigError as error:
        assert error.where.startswith("here.toml")  # noqa: PT017  both results are correct
    else:
        assert isinstance(config, Config)
        sources(text, "here.toml", {})
