"""Map a function over cases in worker processes or in this process, with equal results."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any


@contextlib.contextmanager
def mapping(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a function like the built-in map that uses `workers` fresh processes."""
    if workers <= 1:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.map
