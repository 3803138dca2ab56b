"""Rules about file names and text: no vague module names, no leftovers, no machine paths, no registries."""

import re
from pathlib import PurePosixPath

from tests.lint.tree import LAB, PRODUCT, Problem, Tree, inside

# A module of such a name collects code that belongs elsewhere.
VAGUE = {"utils", "util", "common", "helpers", "helper", "core", "types", "misc"}

# Rule 3: no branch asks whether this is a simulation. These layers are the same code under both clocks.
SIMULATION = re.compile(r"\bis_?sim(?:ulated|ulation)?\b|\bin_simulation\b", re.IGNORECASE)

# Written in halves, so that this file does not match itself.
LEFTOVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
WORKPLACE = re.compile(r"(?<![\w.-])/wor" + r"k/|\.\./sha" + r"red\b")

# A lock file that names a registry works in one network only.
LOCK_FILE = "requirements.lock"
REGISTRY = re.compile(r"://|--(?:extra-)?index-url|--find-links|--trusted-host|^-[if]\b")

SOURCE_SUFFIXES = (
    *(".py", ".pyi", ".c", ".h", ".map", ".cmake", ".txt", ".toml", ".md", ".sh"),
    *(".yaml", ".yml", ".json", ".tpl", ".cfg", ".ini"),
)
SOURCE_NAMES = {"Makefile", "Dockerfile", ".importlinter", ".gitignore", LOCK_FILE}
CI_FOLDER = ".ci/"
"""The CI entry may name where its machine keeps data."""


def vague_names(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.paths:
        if not path.startswith((PRODUCT, LAB, "native/")):
            continue
        for part in PurePosixPath(path).parts:
            name = part.split(".")[0].strip("_").lower()
            if name in VAGUE:
                problems.append(Problem(path, 1, f"{name!r} does not say what the module contains: name its subject"))
    return problems


def simulation_flags(tree: Tree) -> list[Problem]:
    suspects = [path for path in tree.paths if path.startswith("native/") or inside(path, "node", "serve", "cluster")]
    return _lines_with(tree, suspects, SIMULATION, "{word!r}: no branch asks whether this is a simulation (rule 3)")


def leftovers(tree: Tree) -> list[Problem]:
    return _lines_with(tree, _sources(tree), LEFTOVER, "{word} marks unfinished work: finish it or remove it")


def workplaces(tree: Tree) -> list[Problem]:
    paths = [path for path in _sources(tree) if not path.startswith(CI_FOLDER)]
    return _lines_with(tree, paths, WORKPLACE, "{word!r} is a path of one machine")


def registries(tree: Tree) -> list[Problem]:
    lock = [path for path in tree.paths if path == LOCK_FILE]
    return _lines_with(tree, lock, REGISTRY, "{word!r}: the lock file names versions and hashes, never a registry")


def _sources(tree: Tree) -> list[str]:
    return [path for path in tree.paths if path.endswith(SOURCE_SUFFIXES) or PurePosixPath(path).name in SOURCE_NAMES]


def _lines_with(tree: Tree, paths: list[str], pattern: re.Pattern[str], message: str) -> list[Problem]:
    return [
        Problem(path, number, message.format(word=match.group()))
        for path in paths
        for number, line in enumerate(tree.read(path).splitlines(), start=1)
        if (match := pattern.search(line))
    ]
