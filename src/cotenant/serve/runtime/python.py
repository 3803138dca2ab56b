"""Python callables as models."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cotenant.api import Model
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.tensor import NUMPY, Array
from cotenant.serve.runtime.model import ModelLoadError, read_file
from cotenant.units.instant import Duration

PLATFORM: Final = "python"
_PREFIX: Final = "cotenant_model_"
_importing: Final = threading.Lock()
"""Models are loaded by several threads, and `sys.path` is global."""
_helpers: Final[dict[str, Path]] = {}
"""Modules imported from a model's directory, with that directory."""


def models_in(path: Path) -> dict[str, Model]:
    """Return every `Model` that a Python file defines at its top level, by name."""
    path = path.absolute()
    name = f"{_PREFIX}{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    pid = os.getpid()
    with _importing, _importable_folder(path.parent):
        previous = sys.modules.get(name)
        sys.modules[name] = module  # dataclasses look up annotations in sys.modules
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # a file that calls sys.exit must not end the server
            del sys.modules[name]
            if previous is not None:  # the version in service stays
                sys.modules[name] = previous
            raise ModelLoadError(f"{path.name} fails: {type(error).__name__}: {_text_of(error)}") from error
        finally:
            _end_copy(pid)
    models = {value.name: value for value in vars(module).values() if isinstance(value, Model)}
    if not models:
        raise ModelLoadError(f"{path.name} defines no cotenant.Model")
    return models


def model_names(path: Path) -> tuple[str, ...] | None:
    """Return the names of a file's models without executing it; None if a name is not a literal.

    Models are calls `Model(..., name="NAME")` that are assigned at the top level of the file.
    """
    try:
        tree = ast.parse(read_file(path))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        raise ModelLoadError(f"{path.name} fails: {type(error).__name__}: {error}") from None
    names = []
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if value is None or isinstance(value, ast.Constant | ast.Lambda):
            continue
        if not isinstance(value, ast.Call) or _called(value) != Model.__name__:
            if any(isinstance(node, ast.Call) for node in ast.walk(value)):
                return None  # the call may return a model
            continue
        literals = [keyword.value for keyword in value.keywords if keyword.arg == "name"]
        if not literals or not isinstance(literals[0], ast.Constant) or not isinstance(literals[0].value, str):
            return None
        names.append(literals[0].value)
    blocks = (ast.For, ast.While, ast.If, ast.With, ast.Try)
    is_certain = names and not any(isinstance(statement, blocks) for statement in tree.body)
    return tuple(names) if is_certain else None


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


@contextlib.contextmanager
def _importable_folder(folder: Path) -> Iterator[None]:
    """Make the modules of a model's directory, and of no other model's, importable during its import."""
    for name in [name for name, home in _helpers.items() if home != folder]:
        del _helpers[name]
        sys.modules.pop(name, None)
    modules_before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed it
            sys.path.remove(str(folder))
        for name, module in sys.modules.copy().items():  # a copy, because other threads add and remove modules
            file = None if name in modules_before else getattr(module, "__dict__", {}).get("__file__")
            if isinstance(file, str) and Path(file).is_relative_to(folder) and not name.startswith(_PREFIX):
                _helpers[name] = folder


class CallableError(Exception):
    """A callable failed; the text is for clients."""


class PythonModel:
    """A Python callable as a model.

    Whatever the callable raises becomes `CallableError`: `sys.exit` or an exception without a text would otherwise end
    the thread that runs all models of a core. A copy of the process that the callable has forked ends where the
    callable returns, because it has the server's sockets.
    """

    def __init__(self, spec: ModelSpec, model: Model) -> None:
        """The spec has the callable's tensors."""
        self.spec = spec
        self._model = model
        self._names = [tensor.name for tensor in spec.inputs]

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """Return the outputs for these inputs; the callable may use more than its thread's core."""
        del cores
        pid = os.getpid()
        try:
            return self._ordered(self._model.run(dict(zip(self._names, inputs, strict=True))))
        except BaseException as error:  # noqa: BLE001  the callable is the user's code
            raise CallableError(_text_of(error)) from None
        finally:
            _end_copy(pid)

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Yield each response."""
        pid = os.getpid()
        try:
            answers: Any = self._model.run(dict(zip(self._names, inputs, strict=True)))
            for answer in answers if self.spec.decoupled else [answers]:
                _end_copy(pid)
                yield self._ordered(answer)
        except GeneratorExit:
            raise  # the reader of the responses is gone
        except BaseException as error:  # noqa: BLE001  the callable is the user's code
            raise CallableError(_text_of(error)) from None
        finally:
            _end_copy(pid)

    def is_quick(self, size_bytes: int) -> bool:
        """Return the author's setting."""
        del size_bytes
        return self._model.inline

    def record_run(self, size_bytes: int, took_ns: Duration) -> None:
        """Ignore the time."""

    def record_inline_run(self, took_ns: Duration) -> None:
        """Ignore the time."""

    def close(self) -> None:
        """Do nothing."""

    def _ordered(self, answer: Any) -> list[Array]:
        arrays = []
        for output in self.spec.outputs:
            try:
                array = answer[output.name]
            except (KeyError, TypeError, IndexError):
                raise ValueError(
                    f"output {output.name!r} of model {self.spec.name!r} is missing in its result"
                ) from None
            arrays.append(_checked_array(output, np.asarray(array)))
        return arrays


def _text_of(error: BaseException) -> str:
    """Return the text of an exception, whose own methods may fail."""
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  the exception's class is the user's code
        return kind
    if isinstance(error, Exception):
        return text or kind
    return f"{kind}: {text}" if text else kind


def _end_copy(pid: int) -> None:
    """End this process if it is a fork of the one that called the callable."""
    if os.getpid() != pid:
        os._exit(1)


def _checked_array(spec: TensorSpec, array: Array) -> Array:
    expected = NUMPY[spec.datatype]
    if array.dtype == expected:
        return array
    if spec.datatype is Datatype.BYTES and array.dtype.kind in "SU":
        return array.astype(np.object_)
    raise ValueError(
        f"output {spec.name!r} is an array of {array.dtype}, expected {expected} for {spec.datatype.value}"
    )
