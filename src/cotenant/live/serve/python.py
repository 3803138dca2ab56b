"""How is a Python callable run as a model?"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cotenant.domain.instant import Duration
from cotenant.domain.serving import ModelSpec
from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.format.tensor import NUMPY, Array
from cotenant.live.serve.model import LoadFailed
from cotenant.serve import Model

PLATFORM: Final = "python"


def models_in(path: Path) -> dict[str, Model]:
    """Every `Model` that a file of Python makes at its top level, by name."""
    spec = importlib.util.spec_from_file_location(f"cotenant_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise LoadFailed(f"{path.name} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that ends its program must not end ours
        raise LoadFailed(f"{path.name} fails: {type(error).__name__}: {error}") from error
    found = {one.name: one for one in vars(module).values() if isinstance(one, Model)}
    if not found:
        raise LoadFailed(f"{path.name} makes no cotenant.serve.Model")
    return found


class PythonModel:
    """A callable as a model."""

    def __init__(self, spec: ModelSpec, model: Model) -> None:
        """The spec has the callable's tensors."""
        self.spec = spec
        self._model = model
        self._names = [one.name for one in spec.inputs]

    def run(self, inputs: Sequence[Array], cores: Sequence[int] | None = None) -> list[Array]:
        """The outputs for these inputs; what a callable does with more than its thread's core is its own affair."""
        del cores
        return self._ordered(self._model.run(dict(zip(self._names, inputs, strict=True))))

    def stream(self, inputs: Sequence[Array]) -> Iterator[list[Array]]:
        """Each answer as it comes."""
        answers: Any = self._model.run(dict(zip(self._names, inputs, strict=True)))
        for one in answers if self.spec.decoupled else [answers]:
            yield self._ordered(one)

    def is_quick(self, size_bytes: int) -> bool:
        """As its author says."""
        del size_bytes
        return self._model.inline

    def took(self, size_bytes: int, took_ns: Duration) -> None:
        """Nothing is learned from it."""

    def took_at_once(self, took_ns: Duration) -> None:
        """Nor from this."""

    def close(self) -> None:
        """Nothing is held."""

    def _ordered(self, answer: Any) -> list[Array]:
        found = []
        for one in self.spec.outputs:
            try:
                array = answer[one.name]
            except (KeyError, TypeError, IndexError):
                raise ValueError(f"output {one.name!r} of model {self.spec.name!r} is missing in its answer") from None
            found.append(_fitting(one, np.asarray(array)))
        return found


def _fitting(spec: TensorSpec, array: Array) -> Array:
    wanted = NUMPY[spec.datatype]
    if array.dtype == wanted:
        return array
    if spec.datatype is Datatype.BYTES and array.dtype.kind in "SU":
        return array.astype(np.object_)
    raise ValueError(f"output {spec.name!r} is an array of {array.dtype}, expected {wanted} for {spec.datatype.value}")
