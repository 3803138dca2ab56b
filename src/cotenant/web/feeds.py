"""Data of the page as feeds: each is read at a bounded rate while a page shows it, and not at all otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from cotenant.errors import CotenantError

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode
KEEP_ALIVE_S: Final = 15.0
RETRY_MS: Final = 2000


class Feed:
    """One kind of data. All pages share one reading; a slow page skips readings, and never delays the others."""

    def __init__(
        self, name: str, read: Callable[[], Any], period_s: float, *, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        """`read` runs on a thread; `on_idle` is called when the last page has left."""
        self.name = name
        self.readings = 0
        """How often the data was read."""
        self._read = read
        self._period_s = period_s
        self._on_idle = on_idle
        self._pages = 0
        self._latest = b""
        self._number = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Keep the data current inside the block."""
        self._pages += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())
        try:
            yield
        finally:
            self._pages -= 1
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None
                self._latest = b""
                self._on_idle()

    async def next_after(self, number: int) -> tuple[int, bytes]:
        """Return the next reading after this one, as a server-sent event."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._number > number and bool(self._latest))
            return self._number, self._latest

    async def _follow(self) -> None:
        while True:
            try:
                data = _encode(await asyncio.to_thread(self._read))
            except CotenantError as error:
                data = _encode({"problem": str(error)})
            self.readings += 1
            async with self._changed:
                self._number += 1
                self._latest = f"event: {self.name}\ndata: ".encode() + data + b"\n\n"
                self._changed.notify_all()
            await asyncio.sleep(self._period_s)


async def stream(feeds: Sequence[Feed]) -> AsyncIterator[bytes]:
    """Yield the readings of several feeds as server-sent events, until the reader leaves."""
    yield f"retry: {RETRY_MS}\n\n".encode()
    with contextlib.ExitStack() as watched:
        for feed in feeds:
            watched.enter_context(feed.watch())
        numbers = [0] * len(feeds)
        waits: dict[int, asyncio.Task[tuple[int, bytes]]] = {}
        try:
            while True:
                for index, feed in enumerate(feeds):
                    if index not in waits:
                        waits[index] = asyncio.ensure_future(feed.next_after(numbers[index]))
                done, _ = await asyncio.wait(waits.values(), timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    yield b": the server is here\n\n"
                for index in [index for index, wait in waits.items() if wait in done]:
                    numbers[index], event = waits.pop(index).result()
                    yield event
        finally:
            for wait in waits.values():
                wait.cancel()
