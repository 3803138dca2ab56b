"""Attacks through pages that the attacker may write: its own, and the arbitration page.

Values are written to every word, so that the programs need not know the layout of the pages.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Final

from cotenant.runner.clock import monotonic_ns, pause
from cotenant_lab.programs.attacker.bypass import copied_driver, hoard
from cotenant_lab.programs.attacker.context import LIBC, AttackContext
from cotenant_lab.programs.attacker.pages import Mapping, mappings

_PAGE_BYTES: Final = 4096
_SYS_FUTEX: Final = 202
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1
_SLEEPERS: Final = 1000
_SLEEPER_WORDS: Final = 80
_STACK_BYTES: Final = 1 << 16
_EVERY_S: Final = 0.001
_HOUR_NS: Final = 3600 * 10**9
_WORD_MASK: Final = (1 << 64) - 1


def is_arbitration(mapping: Mapping) -> bool:
    """Return whether a writable mapping is the arbitration page: one page of its own, or the second of a file."""
    if mapping.path.startswith("/memfd:"):
        return mapping.size_bytes == _PAGE_BYTES
    return mapping.offset == _PAGE_BYTES


def own_pages() -> list[Mapping]:
    """Return the pages that only this process should write."""
    return [mapping for mapping in mappings() if mapping.is_writable and not is_arbitration(mapping)]


def arbitration_pages() -> list[Mapping]:
    """Return the arbitration page."""
    return [mapping for mapping in mappings() if mapping.is_writable and is_arbitration(mapping)]


def _fill(mapping: Mapping, word: int, size_bytes: int = 8) -> None:
    data = (word & _WORD_MASK).to_bytes(8, "little")[:size_bytes] * (mapping.size_bytes // size_bytes)
    ctypes.memmove(mapping.start, data, mapping.size_bytes)


_VALUES: Final[dict[str, Callable[[], int]]] = {
    "huge": lambda: (1 << 63) - 1,
    "negative": lambda: -1,
    "zero": lambda: 0,
    "future": lambda: monotonic_ns() + _HOUR_NS,
    "past": lambda: 1,
    "smallest": lambda: -(1 << 63),
}


def own_value(context: AttackContext, value: str) -> None:
    """Write one value to every word of the own pages."""
    _continuously(context, own_pages(), lambda page: _fill(page, _VALUES[value]()))


def own_random(context: AttackContext) -> None:
    """Write random bytes to the own pages."""
    _continuously(context, own_pages(), lambda page: _randomize(context, page))


def arbitration_value(context: AttackContext, value: str) -> None:
    """Write one value to every word of the arbitration page: a claim, a debt, and an instant of sleep."""
    _continuously(context, arbitration_pages(), lambda page: _fill(page, _VALUES[value]()))


def arbitration_random(context: AttackContext) -> None:
    """Write random bytes to the arbitration page."""
    _continuously(context, arbitration_pages(), lambda page: _randomize(context, page))


def _randomize(context: AttackContext, page: Mapping) -> None:
    ctypes.memmove(page.start, context.rng.randbytes(page.size_bytes), page.size_bytes)


def _continuously(context: AttackContext, pages: list[Mapping], write: Callable[[Mapping], None]) -> None:
    """Write a thousand times a second while the program works."""

    def write_all() -> None:
        for page in pages:
            context.attempt(write, page)
        pause(_EVERY_S)

    write_all()  # at once, because a thread may not run for a while on a busy machine
    context.in_background(write_all)
    for _ in context.rounds():
        pass


def peer_pages(context: AttackContext) -> None:
    """Copy the pages of other processes over the own pages, with their generations and counters."""
    pages = own_pages()
    sizes = {page.size_bytes for page in pages}
    others = [mapping for mapping in mappings() if not mapping.is_writable]
    contents = [ctypes.string_at(other.start, other.size_bytes) for other in others]
    pieces = [
        content[start : start + size]
        for content in contents
        for size in sizes
        for start in range(0, len(content), size)
        if any(content[start : start + size])
    ] or [bytes(_PAGE_BYTES)]

    def write(page: Mapping) -> None:
        piece = context.rng.choice(pieces)[: page.size_bytes]
        ctypes.memmove(page.start, piece, len(piece))

    _continuously(context, pages, write)


def swapped_words(context: AttackContext) -> None:
    """Add one to a random word of the own pages at a time: generations, indexes and sequence numbers."""

    def write(page: Mapping) -> None:
        offset = context.rng.randrange(page.size_bytes // 4) * 4
        word = ctypes.c_uint32.from_address(page.start + offset)
        word.value += 1

    _continuously(context, own_pages(), write)


def victim_pid(context: AttackContext) -> None:
    """Write the pid of an unrelated process to every word of every writable page, in both word sizes."""
    victim = int(context.facts["victim_pid"])

    def write(page: Mapping) -> None:
        for size_bytes in (4, 8):
            _fill(page, victim, size_bytes)
            pause(_EVERY_S)

    _continuously(context, [*own_pages(), *arbitration_pages()], write)


def victim_pid_and_exit(context: AttackContext) -> None:
    """Leave the pid of an unrelated process in every writable page and die, so that the node cleans up after it."""
    victim = int(context.facts["victim_pid"])
    for page in [*own_pages(), *arbitration_pages()]:
        context.attempt(_fill, page, victim, 4)
    context.note("done", attempts=context.attempts, successes=context.successes, ended="exit")
    os._exit(3)


def victim_pid_and_bypass(context: AttackContext) -> None:
    """Write the pid of an unrelated process everywhere, and make the node kill this tenant's processes."""
    driver = copied_driver(context)
    child = context.child(lambda: hoard(driver, str(context.home)))
    victim_pid(context)
    context.await_children([child])


# -- the wake word -----------------------------------------------------------------------------------------------
def _futex(address: int, operation: int, value: int) -> int:
    word, timeout = ctypes.c_void_p(address), ctypes.c_void_p(None)
    return int(LIBC.syscall(_SYS_FUTEX, word, operation, ctypes.c_uint32(value), timeout, None, 0))


def park_threads(context: AttackContext) -> None:
    """Let a thousand threads sleep on the words of the arbitration page, so that a wake-up takes long."""
    threading.stack_size(_STACK_BYTES)
    [page, *_] = arbitration_pages()
    words = [page.start + 4 * number for number in range(_SLEEPER_WORDS)]

    def sleep(address: int) -> None:
        while context.has_time:
            _futex(address, _FUTEX_WAIT, ctypes.c_uint32.from_address(address).value)

    for number in range(_SLEEPERS):
        address = words[number % len(words)]
        context.attempt(threading.Thread(target=sleep, args=(address,), daemon=True).start)
    for _ in context.rounds():
        pass
    for address in words:
        _futex(address, _FUTEX_WAKE, _SLEEPERS)


def wake_storm(context: AttackContext) -> None:
    """Change the words of the arbitration page and wake every sleeper, without pause."""
    pages = arbitration_pages()

    def storm() -> None:
        for page in pages:
            for offset in range(0, 4 * _SLEEPER_WORDS, 4):
                word = ctypes.c_uint32.from_address(page.start + offset)
                word.value += 1
                context.count(1)
                _futex(page.start + offset, _FUTEX_WAKE, _SLEEPERS)

    context.in_background(storm)
    for _ in context.rounds():
        pass
