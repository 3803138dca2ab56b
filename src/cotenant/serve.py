"""What does a user write to serve a Python callable? A `Model`: what goes in, what comes out, and the callable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from cotenant.domain.tensor import Datatype, TensorSpec

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
Answers: TypeAlias = Tensors | Iterator[Tensors]


class Model:
    """A model that is a callable: tensors by name to tensors by name.

    Shapes leave out the batch where `max_batch` is given; -1 is any size. BYTES are arrays of `bytes` objects, BF16 are
    arrays of uint16 with the bits. A decoupled model gives an iterator, and each item is one answer of a stream.
    An inline model is run by the thread that reads requests: for callables that are done in microseconds.
    """

    def __init__(
        self,
        run: Callable[[Tensors], Answers],
        *,
        name: str,
        inputs: Mapping[str, tuple[str, tuple[int, ...]]],
        outputs: Mapping[str, tuple[str, tuple[int, ...]]],
        max_batch: int = 0,
        decoupled: bool = False,
        inline: bool = False,
    ) -> None:
        """Tensors are given as `{"name": ("FP32", (3, 224, 224))}`."""
        self.run = run
        self.name = name
        self.max_batch = max_batch
        self.decoupled = decoupled
        self.inline = inline
        self.inputs = tuple(_spec(*one) for one in inputs.items())
        self.outputs = tuple(_spec(*one) for one in outputs.items())


def _spec(name: str, given: tuple[str, tuple[int, ...]]) -> TensorSpec:
    datatype, shape = given
    return TensorSpec(name, Datatype(datatype), tuple(shape))
