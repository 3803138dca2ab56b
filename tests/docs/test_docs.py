"""Documents are correct: links, commands and flags exist, code blocks parse, generated pages are current."""

import argparse
import ast
import functools
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cotenant.cli import full_parser
from cotenant_lab.cli import parser_for as lab_parser
from tests.lint.tree import tree_of
from tests.support.tools import ROOT, run_or_fail

FENCE = re.compile(
    r"^(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=ticks)", re.MULTILINE | re.DOTALL
)
LINK = re.compile(
    r"!?\[[^\]]*\]\((?P<inline><[^>]*>|[^()\s]+)(?:\s+[^)]*)?\)|^\[[^\]]+\]:\s*(?P<reference>\S+)", re.MULTILINE
)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|//")
# In these languages every line is a command; in any other block only a line after a prompt is one.
SCRIPTS = {"sh", "bash", "shell"}
PROMPT = "$ "


class Command(NamedTuple):
    """A command line of a document: the program, its words, and its flags before `--`."""

    program: str
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()


def documents(root: Path) -> list[Path]:
    named = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "lab/README.md")]
    return [path for path in named if path.exists()] + sorted((root / "docs").rglob("*.md"))


def links(text: str) -> Iterator[str]:
    for found in LINK.finditer(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
        target = (found["inline"] or found["reference"]).strip("<>")
        if not ELSEWHERE.match(target):
            yield target.split("#")[0]


def broken_links(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {target}"
        for path in documents(root)
        for target in links(path.read_text(encoding="utf-8"))
        if not (root / target.lstrip("/") if target.startswith("/") else path.parent / target).exists()
    ]


def command_lines(text: str) -> Iterator[str]:
    for block in FENCE.finditer(text):
        for line in block["body"].replace("\\\n", " ").splitlines():
            stripped = line.strip()
            if stripped.startswith(PROMPT):
                yield stripped.removeprefix(PROMPT)
            elif block["language"] in SCRIPTS:
                yield stripped


def commands(text: str) -> Iterator[Command]:
    """Yield each make target and each command of cotenant that a document tells its reader to type."""
    for line in command_lines(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        simple: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|()<>"):
                yield from _named(simple)
                simple = []
            else:
                simple.append(word)


def _named(words: list[str]) -> Iterator[Command]:
    while words and (re.match(r"\w+=", words[0]) or words[0] in {"sudo", "time", "exec"}):
        words = words[1:]
    for module, program in (("cotenant", "cotenant"), ("cotenant_lab", "cotenant-lab")):
        if words[1:3] == ["-m", module]:
            words = [program, *words[3:]]
    if not words:
        return
    program, own = words[0].rpartition("/")[2], words[1 : words.index("--") if "--" in words else None]
    rest = [word for word in own if not word.startswith("-") and "=" not in word]
    if program == "make":
        yield from (Command("make", (target,)) for target in rest)
    if program in PARSERS and own and not own[0].startswith("-"):
        flags = tuple(word.partition("=")[0] for word in own if re.match(r"-{1,2}[a-z]", word))
        yield Command(program, tuple(rest[:2]), flags)


def make_targets(root: Path) -> set[str]:
    text = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE))


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "cotenant": full_parser,
    "cotenant-lab": lambda: lab_parser([]),
}


@functools.cache
def flags_of(program: str) -> dict[tuple[str, ...], set[str]]:
    """Return the flags of each command of a program, by its words; a group of commands has its own."""
    found: dict[tuple[str, ...], set[str]] = {}

    def visit(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        found[words] = {option for action in parser._actions for option in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    visit(child, (*words, name))

    visit(PARSERS[program](), ())
    return found


def command_problem(command: Command, root: Path) -> str:
    """Return what is wrong with a command line, or an empty text."""
    if command.program == "make":
        return "" if command.words[0] in make_targets(root) else "is no target"
    commands_of = flags_of(command.program)
    for length in (2, 1):
        if command.words[:length] in commands_of:
            unknown = [flag for flag in command.flags if flag not in commands_of[command.words[:length]]]
            return f"has no {', '.join(unknown)}" if unknown else ""
    return "is no command"


def wrong_commands(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {command.program} {' '.join(command.words)} {problem}"
        for path in documents(root)
        for command in commands(path.read_text(encoding="utf-8"))
        if (problem := command_problem(command, root))
    ]


def wrong_blocks(root: Path) -> list[str]:
    """Return the code blocks that do not parse in their language."""
    parsers: dict[str, Callable[[str], object]] = {"python": ast.parse, "toml": tomllib.loads, "json": json.loads}
    problems = []
    for path in documents(root):
        for block in FENCE.finditer(path.read_text(encoding="utf-8")):
            try:
                parsers.get(block["language"], str)(block["body"])
            except ValueError as error:
                problems.append(f"{path.relative_to(root)}: {block['language']}: {error}")
            except SyntaxError as error:
                problems.append(f"{path.relative_to(root)}: {block['language']}: {error}")
    return problems


def test_every_link_leads_somewhere() -> None:
    assert broken_links(ROOT) == []


def test_every_document_that_sources_name_exists() -> None:
    named = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md")
    sources = [
        path for path in tree_of(ROOT).paths if path.startswith(("src/", "lab/", "native/", "examples/", "scenarios/"))
    ]
    missing = [
        f"{path}: {document}"
        for path in sources
        for document in named.findall((ROOT / path).read_text(encoding="utf-8", errors="replace"))
        if not (ROOT / document).exists()
    ]
    assert missing == []


def test_every_command_and_flag_exists() -> None:
    assert wrong_commands(ROOT) == []


def test_every_code_block_parses() -> None:
    assert wrong_blocks(ROOT) == []


def test_the_generated_pages_are_current() -> None:
    run_or_fail([sys.executable, str(ROOT / "tools" / "reference.py"), "--check"], ROOT)


def test_readme_is_short_and_warns_on_its_first_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert any("Nothing here has run on a real GPU yet" in line for line in lines[:20])


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "[a](b.md) [up](../README.md#x) [web](https://example.org) `[code](no.md)`\n\n[ref]: gone.md\n",
        encoding="utf-8",
    )
    (tmp_path / "README.md").write_text("![p](docs/none.png) [d](docs) [h](#here)\n", encoding="utf-8")
    assert broken_links(tmp_path) == ["README.md: docs/none.png", "docs/a.md: b.md", "docs/a.md: gone.md"]


@pytest.mark.parametrize(
    "block, found",
    [
        ("```sh\nmake setup demo\n```", [Command("make", ("setup",)), Command("make", ("demo",))]),
        (
            "```\nmake nothing\n$ make check && cotenant run --online -- python x.py --fast\n```",
            [Command("make", ("check",)), Command("cotenant", ("run",), ("--online",))],
        ),
        ("```console\n$ .venv/bin/python -m cotenant demo\ncotenant output\n```", [Command("cotenant", ("demo",))]),
        (
            "```bash\nX=1 .venv/bin/cotenant --version # cotenant why\nmake PYTHON=python3.12 -j2 test\n```",
            [Command("make", ("test",))],
        ),
        ("make prose", []),
    ],
)
def test_commands_are_read_from_blocks(block: str, found: list[Command]) -> None:
    assert list(commands(block + "\n")) == found


def test_a_wrong_command_flag_or_block_is_found(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("demo: ## x\n", encoding="utf-8")
    (tmp_path / "README.md").write_text(
        "```sh\nmake demo\nmake coffee\ncotenant ps --nonsense\ncotenant nonsense\n```\n\n```json\n{\n```\n",
        encoding="utf-8",
    )
    assert wrong_commands(tmp_path) == [
        "README.md: make coffee is no target",
        "README.md: cotenant ps has no --nonsense",
        "README.md: cotenant nonsense is no command",
    ]
    assert len(wrong_blocks(tmp_path)) == 1
