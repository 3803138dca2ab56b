"""Dispatch tables from a type to the function that handles values of that type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def handler(kind: type[T], function: Callable[Concatenate[T, P], R]) -> tuple[type, Callable[Concatenate[Any, P], R]]:
    """Return a table row; a type checker rejects a function that does not accept values of this type.

    A dict cannot express that each value accepts instances of its key, so the check happens row by row.
    """
    return kind, function
