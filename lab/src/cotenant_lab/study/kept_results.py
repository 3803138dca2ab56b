"""Keep the result of every case in a file, so that a study that was interrupted continues where it stopped.

A result is found again by its function, its arguments, and the code of both distributions: a changed file or another
argument makes it another case. Files are pickled, which only their owner may write.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NamedTuple

from cotenant.errors import ConfigError
from cotenant.runner.atomic_file import replace_file

_PACKAGES: Final = ("cotenant", "cotenant_lab")
_SUFFIXES: Final = (".py", ".so", ".json")


class KeptResults(NamedTuple):
    """Where results are kept, and the version of the code that made them."""

    directory: str
    version: str


_KEPT: ContextVar[KeptResults | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def keep_results(directory: Path | None) -> Iterator[None]:
    """Keep the results of all cases that run in this context; None: keep none."""
    if directory is None:
        yield
        return
    _make_private(directory)
    token = _KEPT.set(KeptResults(str(directory), code_version()))
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that reads a result if it was kept, or calls `function` and keeps its result."""
    kept = _KEPT.get()
    return function if kept is None else functools.partial(_read_or_call, kept, function)


@functools.cache
def code_version() -> str:
    """Return a hash of the code and the parameters of both distributions."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(root).rglob("*")):
                if path.suffix in _SUFFIXES and path.is_file():
                    found.update(str(path.relative_to(root)).encode())
                    found.update(path.read_bytes())
    return found.hexdigest()


def _read_or_call(kept: KeptResults, function: Callable[..., Any], *arguments: Any) -> Any:
    name = f"{function.__module__}.{function.__qualname__}"
    key = hashlib.sha256(pickle.dumps((kept.version, name, arguments), protocol=5)).hexdigest()
    path = Path(kept.directory) / f"{key}.pickle"
    with contextlib.suppress(OSError, pickle.UnpicklingError, EOFError, AttributeError):
        return pickle.loads(path.read_bytes())  # noqa: S301 - in a directory that only its owner may write
    result = function(*arguments)
    replace_file(path, pickle.dumps(result, protocol=5))
    return result


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise ConfigError("--reuse", str(directory), f"cannot be made: {error.strerror}; name another one") from None
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ConfigError("--reuse", str(directory), "can be written by others; remove it or name another one")
