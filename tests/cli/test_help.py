"""Tests of the command line itself: help, version, completion scripts, manual pages and optional dependencies."""

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant import __version__
from cotenant.cli import COMMANDS, ENTRIES, full_parser, main
from cotenant.cli.help import SHELLS
from cotenant.cli.parser import subcommands
from cotenant.cli.render.man import manual_pages
from cotenant.units.text import parse_size
from tests.support.tools import ROOT

EVALUATION_ONLY = {"scipy", "matplotlib", "cotenant_lab"}
RUN_WITHOUT_EVALUATION = f"""
import sys
for name in {sorted(EVALUATION_ONLY)!r}:
    sys.modules[name] = None
from cotenant.cli import main
sys.exit(main(sys.argv[1:]))
"""


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for command in subcommands(parser).values():
        yield from parsers(command)


def flags(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.option_strings and action.dest != "help")


def test_help_lists_every_command_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--help"])
    assert exited.value.code == 0
    shown = capsys.readouterr().out
    for heading, entries in COMMANDS.items():
        assert f"\n{heading}:\n" in shown
        for entry in entries:
            assert re.search(rf"^  {entry.name} +{re.escape(entry.summary)}$", shown, re.MULTILINE)


def test_help_command_prints_the_same_as_the_help_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run"], ["serve", "run"], ["cluster", "plan"]):
        assert main(["help", *words]) == 0
        shown = capsys.readouterr().out
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        assert capsys.readouterr().out == shown
    assert main(["help", "serve", "rnu"]) == 2
    assert "did you mean run?" in capsys.readouterr().err


def test_long_commands_group_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "run": ("Tenant:", "Measurement:", "Eviction and restart:", "Files:"),
        "node": ("Daemon:", "Launch gate:", "Placement and admission:", "Protection:", "Online-share control:"),
        "serve run": ("Network:", "Model runtime:", "Scheduling and limits:"),
    }
    for command, headings in expected.items():
        main(["help", *command.split()])
        shown = capsys.readouterr().out
        assert [heading for heading in headings if f"\n{heading}\n" not in shown] == []


def test_version_is_a_command_and_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"cotenant {__version__}\n" * 2


def test_every_argument_has_a_help_text() -> None:
    for parser in parsers(full_parser()):
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), f"{parser.prog} {action.dest}"


def test_a_flag_takes_the_same_kind_of_value_in_all_commands() -> None:
    """A flag with two meanings usually takes two kinds of values. --gpu names a GPU, and for a node also its memory.

    `whatif` describes a workload where `run` has a flag without a value: --online and --offline.
    """
    kinds: dict[str, set[str]] = {}
    for parser in parsers(full_parser()):
        for action in flags(parser):
            for option in action.option_strings:
                kinds.setdefault(option, set()).add("" if action.nargs == 0 else str(action.metavar or action.dest))
    several = {option: sorted(metavars) for option, metavars in kinds.items() if len(metavars) > 1}
    expected = {
        "--batch",
        "--device",
        "--gpu",
        "--mode",
        "--name",
        "--offline",
        "--online",
        "--output",
        "-o",
        "--place",
        "--rate",
        "--shape",
        "--slo",
        "--task",
        "--trace",
    }
    assert set(several) <= expected, several


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_covers_every_command(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in ENTRIES:
        assert re.search(rf"\b{name}\b", script), name
    file = tmp_path / f"cotenant.{shell}"
    file.write_text(script)
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n", file], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_completion_in_bash_offers_subcommands_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    (tmp_path / "cotenant.bash").write_text(capsys.readouterr().out)
    for words, expected in ((("cotenant", "serve", ""), "plan"), (("cotenant", "ps", "--"), "--all")):
        script = (
            f"source {tmp_path}/cotenant.bash; COMP_WORDS=({' '.join(map(repr, words))}); "
            f"COMP_CWORD={len(words) - 1}; $(complete -p cotenant | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert expected in done.stdout.split(), done.stderr


def test_stored_manual_pages_match_the_parsers() -> None:
    pages = manual_pages(full_parser(), __version__)
    stored = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / "man").glob("*.1")}
    assert set(stored) == set(pages)
    assert [name for name in pages if stored[name] != pages[name]] == [], "run `make man`"


def test_manual_pages_are_written_and_valid(tmp_path: Path) -> None:
    assert main(["man", "--output", str(tmp_path / "man1")]) == 0
    page = (tmp_path / "man1" / "cotenant-serve-run.1").read_text()
    assert ".SH NAME\ncotenant\\-serve\\-run \\- serve models" in page
    assert "\\fB\\-\\-policy\\fR" in page
    if shutil.which("groff"):
        files = sorted((tmp_path / "man1").iterdir())
        checked = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *files], capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.parametrize(
    "text, size_bytes",
    [("4G", 4 * 10**9), ("4GB", 4 * 10**9), ("4Gi", 4 << 30), ("4GiB", 4 << 30), ("1.5Ki", 1536), ("2M", 2_000_000)],
)
def test_sizes_accept_decimal_and_binary_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


def test_product_does_not_import_evaluation_packages() -> None:
    for path in (ROOT / "src" / "cotenant").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & EVALUATION_ONLY, f"{path}:{node}"


@pytest.mark.parametrize(
    "words",
    [["simulate", "scenarios/node-churn.toml"], ["cluster", "plan", "scenarios/cluster-round.json"], ["--help"]],
)
def test_commands_run_without_evaluation_packages(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_EVALUATION, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(line == line.rstrip() for line in done.stdout.splitlines()), "output to a pipe is not padded"


def test_help_does_not_import_command_modules() -> None:
    program = (
        "import sys\nfrom cotenant.cli import parser_for\nparser_for(['--help']).format_help()\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"rich", "numpy", "asyncio", "cotenant.cli.command", "cotenant.node.config.file"}
