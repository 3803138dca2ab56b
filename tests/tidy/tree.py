"""The files of a project as a value: what a tidy rule reads, and what it says."""

import ast
import functools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PURE_ROOMS = ("errors", "domain", "format", "port", "policy", "machine", "host")
PACKAGE = "src/cotenant/"
C_SUFFIXES = (".c", ".h")
# What a walk must not enter when there is no git to say what is ours (an unpacked sdist).
NOT_OURS = {".git", ".venv", "build", "dist", "site", "demo-out", "__pycache__", ".hypothesis"}


class Problem(NamedTuple):
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Tree:
    """A root and the paths below it that are ours, in a fixed order."""

    root: Path
    paths: tuple[str, ...]

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def parse(self, path: str) -> ast.Module:
        return _parse(self.read(path), path)

    def python(self, below: str = "") -> list[str]:
        return [path for path in self.paths if path.endswith(".py") and path.startswith(below)]

    def c(self) -> list[str]:
        return [path for path in self.paths if path.endswith(C_SUFFIXES)]

    def pure(self) -> list[str]:
        return [path for path in self.python(PACKAGE) if room(path) in PURE_ROOMS]


@functools.cache
def _parse(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


def room(path: str) -> str:
    """The room of a path under src/cotenant: the first folder, or the module's own name."""
    return path.removeprefix(PACKAGE).split("/")[0].removesuffix(".py")


def inside(path: str, *places: str) -> bool:
    """Whether a path is the module or lies in the folder of one of these places ("live/clock")."""
    tail = path.removeprefix(PACKAGE)
    return any(tail == f"{place}.py" or tail.startswith(f"{place}/") for place in places)


def tree_of(root: Path) -> Tree:
    """Every file of ours: what git knows or would add, or else everything that no tool has made."""
    names = _known_to_git(root)
    if names is None:
        found = (path.relative_to(root) for path in root.rglob("*"))
        names = [path.as_posix() for path in found if not _made_by_a_tool(path)]
    return Tree(root, tuple(sorted(name for name in set(names) if (root / name).is_file())))


def _known_to_git(root: Path) -> list[str] | None:
    """None without git, or with one that refuses (a checkout of another user): the walk sees no less."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    return [name for name in listing.stdout.split("\0") if name] if listing.returncode == 0 else None


def _made_by_a_tool(path: Path) -> bool:
    return any(part in NOT_OURS or part.endswith(("_cache", ".egg-info")) for part in path.parts)
