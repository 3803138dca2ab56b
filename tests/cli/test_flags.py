"""Tests of the flags of config fields."""

import argparse
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant import cli
from cotenant.cli.flags import SECTIONS, flags_of, option_of, overlay
from cotenant.cli.parser import subcommands
from cotenant.errors import ConfigError
from cotenant.node.config.file import Config, GpuConfig, decode_config, plain, toml_value, validate
from cotenant.units.toml import SizeBytes
from tests.support.strategies import configs

FIELDS = [(section, field) for section, kind in SECTIONS.items() for field in kind.__struct_fields__]


def parser_of(*words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = cli.parser_for(words)
    for word in words:
        parser = subcommands(parser)[word]
    return parser


def flags_in(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the flags of a command by the config field that they set."""
    flags: dict[str, list[str]] = {}
    for action in parser._actions:
        if "." in action.dest:
            flags.setdefault(action.dest, []).extend(action.option_strings)
    return flags


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["no-command", "ps"]])
def test_all_commands_are_listed_without_importing_their_modules(words: list[str]) -> None:
    assert list(subcommands(cli.parser_for(words))) == list(cli.ENTRIES)


@pytest.mark.parametrize("name", cli.ENTRIES)
def test_command_help_is_the_same_in_the_full_parser(name: str) -> None:
    assert parser_of(name).format_help() == subcommands(cli.full_parser())[name].format_help()


def test_every_section_has_flags() -> None:
    assert list(SECTIONS) == [field for field in Config.__struct_fields__ if field not in ("gpu", "limits")]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_exactly_one_flag(section: str) -> None:
    flags = flags_of(section)
    expected = [(section, field) for field in SECTIONS[section].__struct_fields__ if field != "kind"]
    assert [flag.field for flag in flags] == expected
    assert [flag.option for flag in flags] == [option_of(*field) for field in expected]
    assert all(flag.about for flag in flags)


@pytest.mark.parametrize(
    "command, sections",
    [
        ("node", ["node", "operators", "protect", "control", "directories"]),
        ("run", ["run", "directories"]),
        ("config", list(SECTIONS)),
    ],
)
def test_a_command_has_the_flags_of_its_sections(command: str, sections: list[str]) -> None:
    expected: dict[str, list[str]] = {}
    for section, field in FIELDS:
        if section in sections:
            flag = option_of(section, field)
            if [flag] in expected.values():  # only in `config`: the later section is the prefix
                flag = f"--{section}{flag[1:]}"
            expected[f"{section}.{field}"] = [flag] if field != "kind" else ["--online", "--offline"]
    assert flags_in(parser_of(command)) == expected
    assert command == "config" or not any(flag.startswith("--run-") for [flag, *_] in expected.values())


def as_flags(config: Config) -> dict[tuple[str, str], str]:
    """Return the flags that produce this config; a field that is not set has none."""
    shown = plain(config)
    values = {(section, field): shown[section][field] for section, field in FIELDS}
    return {
        field: ",".join(value) if isinstance(value, list) else str(value)
        for field, value in values.items()
        if value is not None
    }


@given(configs)
def test_flags_cover_every_value_of_a_file(config: Config) -> None:
    gpus = [f"{gpu.name}={plain(gpu.memory)}" for gpu in config.gpu if "=" not in gpu.name]
    expected = msgspec.structs.replace(config, gpu=tuple(gpu for gpu in config.gpu if "=" not in gpu.name))
    assert overlay(Config(), as_flags(config), gpus) == expected


@given(configs, configs, st.sets(st.sampled_from(FIELDS)))
def test_flag_and_file_decode_a_value_alike(base: Config, other: Config, chosen: set[tuple[str, str]]) -> None:
    flags = {field: value for field, value in as_flags(other).items() if field in chosen}
    overlaid = overlay(base, flags)
    for section, field in FIELDS:
        source = other if (section, field) in flags else base
        assert getattr(getattr(overlaid, section), field) == getattr(getattr(source, section), field)
    assert overlaid.gpu == base.gpu
    for section, field in flags:
        value = plain(getattr(getattr(other, section), field))
        in_file = decode_config(f"{section}.{field} = {toml_value(value)}", "here.toml")
        assert getattr(getattr(in_file, section), field) == getattr(getattr(overlaid, section), field)


def test_overlay_without_flags_changes_nothing() -> None:
    config = decode_config("[node]\nslots = 3\n[[gpu]]\nname = 'a'\nmemory = '1GiB'\n", "here.toml")
    assert overlay(config, {}) == config


@pytest.mark.parametrize(
    "field, value, remedy",
    [
        (("node", "slots"), "0", ">= 1"),
        (("node", "slots"), "many", "integer"),
        (("node", "slots"), "8.5", "integer"),
        (("node", "idle_exit"), "5", "write a number and a unit"),
        (("node", "place"), "best", "spread, pack or predict"),
        (("node", "journal_limit"), "5s", "4GiB"),
        (("run", "priority"), "10", "<= 9"),
        (("run", "share"), "30", "30%"),
        (("run", "name"), "a b", "letters"),
        (("run", "slo"), "-1s", "write a number and a unit"),
    ],
)
def test_invalid_value_is_reported_with_its_flag(field: tuple[str, str], value: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overlay(Config(), {field: value})
    assert (caught.value.field, caught.value.value) == (option_of(*field), value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("text", ["", "a", "=", "=1GiB", "a=", "a=16", "a=b=1GiB", "a=1s", "x" * 65 + "=1GiB"])
def test_invalid_gpu_value_is_reported_with_the_format(text: str) -> None:
    with pytest.raises(ConfigError, match="write NAME=MEMORY") as caught:
        overlay(Config(), {}, [text])
    assert (caught.value.field, caught.value.value) == ("--gpu", text)


def test_gpu_flags_replace_the_gpus_of_the_file() -> None:
    config = Config(gpu=(GpuConfig(name="a", memory=SizeBytes(1)),))
    assert overlay(config, {}, ["b=1KiB", "c=2KiB"]).gpu == (
        GpuConfig(name="b", memory=SizeBytes(1024)),
        GpuConfig(name="c", memory=SizeBytes(2048)),
    )


def test_config_show_output_decodes_to_the_same_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my config.toml"
    file.write_text(
        "node = { slots = 3 }\n[run]\ntask = 'a # b'\n[[gpu]]\nname = 'a'\nmemory = '1.5GiB'\n", encoding="utf-8"
    )
    assert cli.main(["config", "show", "--config", str(file), "--reconnect-grace", "7s", "--online"]) == 0
    shown = capsys.readouterr().out
    config = decode_config(shown, "shown")
    assert (config.node.slots, config.node.grace, config.run.task, config.run.kind.value) == (
        3,
        7 * 10**9,
        "a # b",
        "online",
    )
    assert config.gpu == (GpuConfig(name="a", memory=SizeBytes(3 << 29)),)
    assert f"slots = 3  # {file}:1" in shown
    assert 'grace = "7s"  # flag' in shown
    assert 'place = "spread"  # default' in shown


@pytest.mark.parametrize(
    "flags, result",
    [
        ({("control", "adjust_period"): "1ms"}, "control.adjust_period = '1ms'"),
        ({("control", "slo_quantile"): "100%"}, "control.slo_quantile = '100%'"),
        ({("control", "slo_headroom"): "60%"}, "control.slo_headroom = '60%'"),
        ({("control", "min_online_share"): "0%"}, "control.min_online_share = '0%'"),
        (
            {("control", "max_online_share"): "5%"},
            "control.min_online_share = '10%': must not be above control.max_online_share",
        ),
        ({("control", "mps_share"): "on"}, "control.mps_share = 'on': SMs are assigned only under MPS"),
        ({("node", "unmet"): "refuse"}, "node.unmet = 'refuse': node.place 'spread' makes no predictions"),
    ],
)
def test_ineffective_or_contradictory_values_are_refused(flags: dict[tuple[str, str], str], result: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(overlay(Config(), flags, []))
    assert str(error.value).startswith(result)
    validate(overlay(Config(), {("control", "mps_share"): "on", ("node", "mps"): "on"}, []))
