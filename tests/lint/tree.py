"""The files of the project as a value that lint rules read, and the problems that they report."""

import ast
import functools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PRODUCT = "src/cotenant/"
LAB = "lab/src/cotenant_lab/"
C_SUFFIXES = (".c", ".h")
# Layers that depend on nothing but their arguments: no clock, no RNG, no socket, no process.
PURE = (
    *("units", "errors", "predict", "serve/protocol"),
    *(f"{component}/{layer}" for component in ("node", "serve", "cluster") for layer in ("model", "policy", "state")),
    *("node/wire", "node/config", "node/ports", "node/host", "node/decision_log", "runner/host", "runner/ports"),
    *("serve/ports", "serve/host", "cluster/ports", "cluster/host", "gate/rules", "gate/activity"),
)
# Directories that a walk skips when git cannot list the project's files (an unpacked sdist).
NOT_OURS = {".git", ".venv", "build", "dist", "site", "demo-out", "__pycache__", ".hypothesis", "node_modules"}


class Problem(NamedTuple):
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Tree:
    """A root directory and the project's paths below it, in a fixed order."""

    root: Path
    paths: tuple[str, ...]

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def parse(self, path: str) -> ast.Module:
        return _parse(self.read(path), path)

    def python(self, *below: str) -> list[str]:
        """Return the Python files below any of the given prefixes, or all of them."""
        return [path for path in self.paths if path.endswith(".py") and path.startswith(below or "")]

    def c(self) -> list[str]:
        return [path for path in self.paths if path.endswith(C_SUFFIXES)]

    def pure(self) -> list[str]:
        return [path for path in self.python(PRODUCT) if inside(path, *PURE)]

    def simulated(self) -> list[str]:
        """Return the modules of simulators: `sim` packages and modules, and the composition in simulate/."""
        return [
            path
            for path in self.python(PRODUCT)
            if {"sim", "sim.py", "simulate"} & set(path.removeprefix(PRODUCT).split("/"))
        ]


@functools.cache
def _parse(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


def component(path: str) -> str:
    """Return the component of a Python file: the first folder below the product's package, or `lab`."""
    if path.startswith(LAB):
        return "lab"
    return path.removeprefix(PRODUCT).split("/")[0].removesuffix(".py")


def inside(path: str, *modules: str) -> bool:
    """Return whether a product path is one of these modules, or lies in the folder of one ("runner/clock")."""
    tail = path.removeprefix(PRODUCT)
    return any(tail == f"{module}.py" or tail.startswith(f"{module}/") for module in modules)


def tree_of(root: Path) -> Tree:
    """Return the project's files: those that git tracks or would add, else all that no tool has generated."""
    names = _listed_by_git(root)
    if names is None:
        found = (path.relative_to(root) for path in root.rglob("*"))
        names = [path.as_posix() for path in found if not _is_generated(path)]
    return Tree(root, tuple(sorted(name for name in set(names) if (root / name).is_file())))


def _listed_by_git(root: Path) -> list[str] | None:
    """Return git's list of files, or None without git or with a git that refuses (a checkout of another user)."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    return [name for name in listing.stdout.split("\0") if name] if listing.returncode == 0 else None


def _is_generated(path: Path) -> bool:
    return any(part in NOT_OURS or part.endswith(("_cache", ".egg-info")) for part in path.parts)
