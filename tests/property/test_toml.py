"""Does every config survive the file, and every mistake get its line and field?"""

import pytest

from cotenant.errors import ConfigError
from cotenant.format.config import Config, DirectoriesConfig, RunConfig, decode_config, encode_config
from cotenant.format.flags import sources


@pytest.mark.parametrize("line", ['node.place = "spread\\n"', 'node.admit = "reserve\\n"', 'run.name = "web\\n"'])
def test_a_newline_after_a_word_makes_another_word(line: str) -> None:
    with pytest.raises(ConfigError):
        decode_config(line, "here.toml")


BEYOND = {
    "an integer that Python will not read": "node.slots = " + "1" * 5000,
    "an integer that Python will not print": "node.slots = 0x" + "1" * 5000,
    "the same where text belongs": "node.grace = 0x" + "1" * 5000,
    "tables too deep to print": "a" + ".a" * 5000 + " = 1",
    "lists too deep to read": "a = " + "[" * 5000 + "]" * 5000,
    "inline tables without an end": "a = " + "{a = " * 5000,
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_beyond_measure_is_one_short_sentence(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config(BEYOND[name], "here.toml")
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_delete_character_survives_the_file() -> None:
    config = Config(run=RunConfig(task="a\x7fb"))
    assert decode_config(encode_config(config), "here.toml") == config


def test_a_path_that_is_no_text_can_be_shown() -> None:
    shown = encode_config(Config(directories=DirectoriesConfig(state="/tmp/\udcff")))
    assert decode_config(shown, "here.toml").directories.state == "/tmp/?"


# name: the text, the line of the mistake, its field
PLACES = {
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


@pytest.mark.parametrize("name", PLACES)
def test_a_mistake_is_found_where_it_stands(name: str) -> None:
    text, line, field = PLACES[name]
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
def test_show_says_where_a_value_came_from(name: str) -> None:
    text, source = SOURCES[name]
    assert sources(text, "here.toml", {})["node.slots"] == source
    assert sources(text, "here.toml", {("node", "slots"): "9"})["node.slots"] == "flag"
