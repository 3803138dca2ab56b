"""Which words and names may not stand where they stand?"""

import re
from pathlib import PurePosixPath

from tests.tidy.tree import PACKAGE, Problem, Tree, room

# A bucket has no question to answer, so anything finds its way into it.
BUCKETS = {"utils", "util", "common", "helpers", "helper", "core", "types", "misc"}

# Law 3. The rooms that may say it: they choose the world, are that world, or judge it.
WORLD_WORD = re.compile(r"simulat|(?<![a-z])is_?sim(?![a-z])", re.IGNORECASE)
MAY_SAY_IT = {"cli", "__main__", "apps", "sim", "experiment"}

# Written in halves, so that this file does not find itself.
LEFTOVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
WORKPLACE = re.compile(r"(?<![\w.-])/wor" + r"k/|/tmp/han" + r"ds")

# A lock that names a registry works in one network only.
LOCK_FILE = "requirements.lock"
REGISTRY = re.compile(r"://|--(?:extra-)?index-url|--find-links|--trusted-host|^-[if]\b")

SOURCE_SUFFIXES = (
    *(".py", ".pyi", ".c", ".h", ".map", ".cmake", ".txt", ".toml", ".md", ".sh"),
    *(".yaml", ".yml", ".json", ".tpl", ".cfg", ".ini"),
)
SOURCE_NAMES = {"Makefile", "Dockerfile", ".importlinter", ".gitignore", "run", LOCK_FILE}


def buckets(tree: Tree) -> list[Problem]:
    problems = []
    for path in tree.paths:
        if not path.startswith((PACKAGE, "native/")):
            continue
        for part in PurePosixPath(path.removeprefix(PACKAGE)).parts:
            name = part.split(".")[0].strip("_").lower()
            if name in BUCKETS:
                problems.append(
                    Problem(path, 1, f"{name!r} is a bucket, not a room: name it by the question it answers")
                )
    return problems


def world_word(tree: Tree) -> list[Problem]:
    """Law 3: no branch asks in which world it runs; the word itself stays out, in names, texts and comments."""
    suspects = [
        path
        for path in tree.paths
        if path.startswith("native/") or (path.startswith(PACKAGE) and room(path) not in MAY_SAY_IT)
    ]
    return _lines_with(tree, suspects, WORLD_WORD, "says {word!r}: only cli, apps, sim and experiment may (law 3)")


def leftovers(tree: Tree) -> list[Problem]:
    return _lines_with(tree, _sources(tree), LEFTOVER, "{word} is a promise nobody keeps: do it or drop it")


def workplaces(tree: Tree) -> list[Problem]:
    return _lines_with(tree, _sources(tree), WORKPLACE, "{word!r} is a path of one machine")


def registries(tree: Tree) -> list[Problem]:
    lock = [path for path in tree.paths if path == LOCK_FILE]
    return _lines_with(tree, lock, REGISTRY, "{word!r}: the lock file names versions and hashes, never a registry")


def _sources(tree: Tree) -> list[str]:
    return [path for path in tree.paths if path.endswith(SOURCE_SUFFIXES) or PurePosixPath(path).name in SOURCE_NAMES]


def _lines_with(tree: Tree, paths: list[str], pattern: re.Pattern[str], what: str) -> list[Problem]:
    return [
        Problem(path, number, what.format(word=found.group()))
        for path in paths
        for number, line in enumerate(tree.read(path).splitlines(), start=1)
        if (found := pattern.search(line))
    ]
