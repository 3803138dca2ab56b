"""The public Python API: `request` reports how long requests take, `Model` serves a Python callable.

Importing this module imports neither numpy nor the server, so that `cotenant.request` costs a program nothing.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, TypeAlias

    import numpy.typing as npt

    from cotenant.serve.model.tensor import TensorSpec

    Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
    Answers: TypeAlias = Tensors | Iterator[Tensors]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_WORD_BITS: Final = 64


class request:  # noqa: N801  # as users write it: with cotenant.request():
    """One request, from the start to the end of the block: `with`, `async with`, or a function decorator.

    `arrived_ns` is the arrival by `time.monotonic_ns()`, if the request arrived earlier. Requests may overlap and nest,
    in any thread or task; each is counted on its own, also one that raises.
    """

    __slots__ = ("_arrived_ns", "_open")

    def __init__(self, *, arrived_ns: int | None = None) -> None:
        """Create a request; it begins with the block."""
        self._arrived_ns = 0 if arrived_ns is None else _nanoseconds(arrived_ns, "arrived_ns")
        self._open: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        """Begin the request."""
        self._open.append(_begin(self._arrived_ns))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the request."""
        _end(*self._open.pop())

    async def __aenter__(self) -> Self:
        """Begin the request."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the request."""
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Count every call of this function as a request; a call of a coroutine function lasts until it is awaited."""
        import inspect  # noqa: PLC0415  # only decorators need it: importing cotenant stays cheap

        if self._arrived_ns:
            raise ValueError("arrived_ns cannot be given to a decorator: use `with cotenant.request(arrived_ns=...)`")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} is a generator function: use `with cotenant.request():` inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def counted_coroutine(*args: _P.args, **kwargs: _P.kwargs) -> Any:  # the result of the coroutine
                with request():
                    return await function(*args, **kwargs)

            return cast("Callable[_P, _R]", counted_coroutine)

        @functools.wraps(function)
        def counted_call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with request():
                return function(*args, **kwargs)

        return counted_call

    @staticmethod
    def ended(latency_ns: int) -> None:
        """Report a finished request by its latency."""
        latency_ns = _nanoseconds(latency_ns, "latency_ns")
        hook = _hook()
        if hook is not None:
            hook.cotenant_hook_request_took(latency_ns)

    @staticmethod
    def is_recorded() -> bool:
        """Return whether requests are recorded: the program runs under `cotenant run` with its hook."""
        return _hook() is not None


def _nanoseconds(value: int, name: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an integer number of nanoseconds")
    if not 0 <= value < 1 << _WORD_BITS:
        raise ValueError(f"{name} is {value}; it must be a non-negative 64-bit number of nanoseconds")
    return value


def _begin(arrived_ns: int) -> tuple[int, int]:
    hook = _hook()
    if hook is None:
        return 0, 0
    import ctypes  # noqa: PLC0415  # already imported by _hook

    began_ns = ctypes.c_uint64()
    slot = hook.cotenant_hook_request_begin(arrived_ns, ctypes.byref(began_ns))
    return slot, began_ns.value


def _end(slot: int, began_ns: int) -> None:
    hook = _hook()
    if hook is not None and began_ns:
        hook.cotenant_hook_request_end(slot, began_ns)


@functools.cache
def _hook() -> ctypes.CDLL | None:
    """Return the hook library that `cotenant run` loaded: preloaded, or in place of the driver."""
    if not os.environ.get("COTENANT_RECORD"):
        return None
    import ctypes  # noqa: PLC0415  # not needed outside a tenant

    for name in (None, "libcuda.so.1"):
        try:
            library = ctypes.CDLL(name)
            begin = library.cotenant_hook_request_begin
        except (OSError, AttributeError):
            continue
        begin.argtypes, begin.restype = (ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)), ctypes.c_uint64
        library.cotenant_hook_request_end.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
        library.cotenant_hook_request_end.restype = None
        library.cotenant_hook_request_took.argtypes = (ctypes.c_uint64,)
        library.cotenant_hook_request_took.restype = None
        return library
    return None


class Model:
    """A model that is a Python callable from named tensors to named tensors.

    Shapes omit the batch dimension where `max_batch` is given; -1 is any size. BYTES are arrays of `bytes` objects,
    BF16 are arrays of uint16 with the bits. A decoupled model returns an iterator; each item is one response of a
    stream. An inline model runs on the thread that reads requests, for callables that take microseconds.
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
        self.inputs = tuple(_spec(*item) for item in inputs.items())
        self.outputs = tuple(_spec(*item) for item in outputs.items())


def _spec(name: str, declaration: tuple[str, tuple[int, ...]]) -> TensorSpec:
    from cotenant.serve.model.tensor import Datatype, TensorSpec  # noqa: PLC0415  numpy only where a model is defined

    datatype, shape = declaration
    return TensorSpec(name, Datatype(datatype), tuple(shape))
