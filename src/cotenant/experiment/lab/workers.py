"""Who plays the cases of a lab? Processes, or nobody but ourselves; the outcome is the same."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any


@contextlib.contextmanager
def mapping(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """What maps as the built-in does, by so many processes, each started afresh."""
    if workers <= 1:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.map
