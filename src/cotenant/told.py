"""How long do a program's requests take? For programs to tell; outside of a tenant nothing happens."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

_P = ParamSpec("_P")
_R = TypeVar("_R")
_WORD_BITS: Final = 64


class request:  # noqa: N801  # as users write it: with cotenant.request():
    """One request, from here to the end of the block: `with`, `async with`, or a decorator of a function.

    `arrived_ns` is when it arrived, by `time.monotonic_ns()`, if that was earlier. Requests may overlap and nest, in
    any thread or task, and each counts by itself; one that raises counts as well.
    """

    __slots__ = ("_arrived_ns", "_open")

    def __init__(self, *, arrived_ns: int | None = None) -> None:
        """Begin nothing yet."""
        self._arrived_ns = 0 if arrived_ns is None else _word(arrived_ns, "arrived_ns")
        self._open: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        """It begins."""
        self._open.append(_begin(self._arrived_ns))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over."""
        _end(*self._open.pop())

    async def __aenter__(self) -> Self:
        """It begins."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over."""
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Every call of this function is a request; of a coroutine function, until it is awaited to its end."""
        import inspect  # noqa: PLC0415  # only who decorates needs it: importing cotenant stays light

        if self._arrived_ns:
            raise ValueError("a decorated function has no one arrival: use `with cotenant.request(arrived_ns=...)`")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} is a generator: use `with cotenant.request():` inside of it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: _P.args, **kwargs: _P.kwargs) -> Any:  # whatever it gives
                with request():
                    return await function(*args, **kwargs)

            return cast("Callable[_P, _R]", awaited)

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with request():
                return function(*args, **kwargs)

        return called

    @staticmethod
    def ended(latency_ns: int) -> None:
        """One is over that took so long, by a clock of your own."""
        latency_ns = _word(latency_ns, "latency_ns")
        hook = _hook()
        if hook is not None:
            hook.cotenant_hook_request_took(latency_ns)

    @staticmethod
    def is_heard() -> bool:
        """Whether anybody listens: the program runs under `cotenant run`, with its hook."""
        return _hook() is not None


def _word(value: int, name: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be a whole number of nanoseconds")
    if not 0 <= value < 1 << _WORD_BITS:
        raise ValueError(f"{name} is {value}; it must be a number of nanoseconds of 64 bits, not negative")
    return value


def _begin(arrived_ns: int) -> tuple[int, int]:
    hook = _hook()
    if hook is None:
        return 0, 0
    import ctypes  # noqa: PLC0415  # it is imported already

    began_ns = ctypes.c_uint64()
    place = hook.cotenant_hook_request_begin(arrived_ns, ctypes.byref(began_ns))
    return place, began_ns.value


def _end(place: int, began_ns: int) -> None:
    hook = _hook()
    if hook is not None and began_ns:
        hook.cotenant_hook_request_end(place, began_ns)


@functools.cache
def _hook() -> ctypes.CDLL | None:
    """The hook that `cotenant run` put before the driver: preloaded, or behind the name of the driver."""
    if not os.environ.get("COTENANT_RECORD"):
        return None
    import ctypes  # noqa: PLC0415  # outside of a tenant nobody needs it

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
