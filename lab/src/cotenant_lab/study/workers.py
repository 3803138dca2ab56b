"""Map a function over cases in worker processes or in this process, with equal results; results may be kept."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from cotenant_lab.study.kept_results import kept_function


@contextlib.contextmanager
def mapping(workers: int, chunk_size: int = 1) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a function like the built-in map that uses `workers` fresh processes, `chunk_size` cases at a time."""
    if workers <= 1:
        yield lambda function, *columns: map(kept_function(function), *columns)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *columns: pool.map(kept_function(function), *columns, chunksize=chunk_size)
