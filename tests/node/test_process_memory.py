"""The memory that NVML reports by process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cotenant.node.nvml import process_memory


class Entry(NamedTuple):
    pid: int
    usedGpuMemory: int | None  # noqa: N815  # NVML's name


def listing(*entries: tuple[int, int | None]) -> Callable[[Any], list[Entry]]:
    return lambda _: [Entry(*values) for values in entries]


def test_memory_of_a_process_is_the_sum_of_a_list_and_the_largest_of_all_lists() -> None:
    """A process that loads the driver twice, or has two kinds of context, does not hide the larger part."""
    lists = [listing((1, 15), (1, 2), (2, None), (3, None)), listing((1, 2), (2, 5)), listing()]
    assert process_memory(None, lists) == {1: 17, 2: 5, 3: None}
    assert process_memory(None, lists[::-1]) == {1: 17, 2: 5, 3: None}
