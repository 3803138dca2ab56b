"""Do the documents tell the truth: does every link lead somewhere, does every command they name exist?"""

import functools
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tool import ROOT, run_or_fail

FENCE = re.compile(
    r"^(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=ticks)", re.MULTILINE | re.DOTALL
)
LINK = re.compile(
    r"!?\[[^\]]*\]\((?P<inline><[^>]*>|[^()\s]+)(?:\s+[^)]*)?\)|^\[[^\]]+\]:\s*(?P<reference>\S+)", re.MULTILINE
)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#|//")
# In these every line is a command; in any other block only a line after a prompt is one, the rest is output.
SCRIPTS = {"sh", "bash", "shell"}
PROMPT = "$ "


class Command(NamedTuple):
    program: str
    word: str


def documents(root: Path) -> list[Path]:
    named = [root / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
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
    """Each make target and each cotenant subcommand that a reader is told to type."""
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
    if words[1:3] == ["-m", "cotenant"]:
        words = ["cotenant", *words[3:]]
    if not words:
        return
    program = words[0].rpartition("/")[2]
    rest = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if program == "make":
        yield from (Command("make", target) for target in rest)
    if program == "cotenant" and len(words) > 1 and not words[1].startswith("-"):
        yield Command("cotenant", words[1])


def make_targets(root: Path) -> set[str]:
    text = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE))


def listed(help_text: str) -> set[str]:
    """The subcommands in a help text: argparse's {a,b} and the indented lines that begin with one word."""
    choices = {name for group in re.findall(r"\{([a-z0-9,-]+)\}", help_text) for name in group.split(",")}
    return choices | set(re.findall(r"^ {2,6}([a-z][a-z0-9-]*)(?: {2,}|$)", help_text, re.MULTILINE))


@functools.cache
def subcommands() -> set[str]:
    wide = {"COLUMNS": "200", "NO_COLOR": "1"}
    return listed(run_or_fail([sys.executable, "-m", "cotenant", "--help"], ROOT, wide))


def unknown_commands(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {command.program} {command.word}"
        for path in documents(root)
        for command in commands(path.read_text(encoding="utf-8"))
        if command.word not in (make_targets(root) if command.program == "make" else subcommands())
    ]


def test_every_link_leads_somewhere() -> None:
    assert broken_links(ROOT) == []


def test_every_command_exists() -> None:
    assert unknown_commands(ROOT) == []


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
        ("```sh\nmake setup demo\n```", [("make", "setup"), ("make", "demo")]),
        (
            "```\nmake nothing\n$ make check && cotenant run -- python x.py\n```",
            [("make", "check"), ("cotenant", "run")],
        ),
        ("```console\n$ .venv/bin/python -m cotenant demo\ncotenant output\n```", [("cotenant", "demo")]),
        (
            "```bash\nX=1 .venv/bin/cotenant --version # cotenant why\nmake PYTHON=python3.12 -j2 test\n```",
            [("make", "test")],
        ),
        ("make prose", []),
    ],
)
def test_commands_are_read_as_a_reader_would(block: str, found: list[tuple[str, str]]) -> None:
    assert list(commands(block + "\n")) == found


def test_an_unknown_make_target_is_found(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("demo: ## x\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("```sh\nmake demo\nmake coffee\n```\n", encoding="utf-8")
    assert unknown_commands(tmp_path) == ["README.md: make coffee"]


def test_subcommands_are_read_from_help() -> None:
    text = "usage: cotenant [-h] {demo,run} ...\n\n  node       one node\n  --help     this\n    bench\nprose here\n"
    assert listed(text) == {"demo", "run", "node", "bench"}
