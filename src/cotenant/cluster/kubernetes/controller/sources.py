"""Threads that list and watch the objects of the API, send requests, and hold the Lease; the main thread decides.

Every thread puts what it received into one inbox, which wakes the main loop.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from cotenant.cluster.kubernetes.api import GONE, ApiClient, ApiError, ApiRequest, Response
from cotenant.cluster.kubernetes.controller.election import RETRY_S, Election
from cotenant.cluster.kubernetes.controller.predictions import Learned, load_learned
from cotenant.errors import CotenantError
from cotenant.runner.clock import pause
from cotenant.runner.live_loop import READ, IoLoop
from cotenant.runner.ports import Clock

_SHORTEST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_DRAINED: Final = 1000
"""Messages that are handled before other descriptors and timers have their turn."""
_BOOKMARK: Final = "BOOKMARK"


class ListMessage(NamedTuple):
    """A complete list."""

    source: str
    items: list[Any]


class ChangeMessage(NamedTuple):
    """A change that a watch reported."""

    source: str
    is_gone: bool
    item: Any


class AnswerMessage(NamedTuple):
    """Answer to a request."""

    ticket: int
    response: Response


class ElectionWon(NamedTuple):
    """This process is the leader."""

    learned: Learned


class LeaseLost(NamedTuple):
    """This process is the leader no more."""

    why: str


class Trouble(NamedTuple):
    """A thread reports a problem, or that it is over (an empty text)."""

    source: str
    text: str


Message: TypeAlias = ListMessage | ChangeMessage | AnswerMessage | ElectionWon | LeaseLost | Trouble


class Inbox:
    """Messages of all threads for the main loop."""

    def __init__(self, loop: IoLoop, handle: Callable[[Message], None]) -> None:
        self._loop, self._handle = loop, handle
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.is_closed = False
        loop.watch(self._reader.fileno(), READ, self._ready)

    def put(self, message: Message) -> None:
        """Deliver a message; called by any thread."""
        self._messages.put(message)
        with contextlib.suppress(OSError):  # enough wake-up bytes are waiting already
            self._writer.send(b"\0")

    def close(self) -> None:
        """Deliver no more messages; threads end when they notice."""
        self.is_closed = True
        self._loop.forget(self._reader.fileno())
        self._reader.close()
        self._writer.close()

    def _ready(self, mask: int) -> None:
        del mask
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(1 << 16)
        for _ in range(_DRAINED):
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return
            self._handle(message)
            if self.is_closed:
                return
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")


class WatchSource(threading.Thread):
    """Lists a collection and watches it, for ever; after a gap it continues where it was, or lists again."""

    def __init__(
        self, name: str, client: ApiClient, path: str, kind: type[Any], selectors: Mapping[str, str], inbox: Inbox
    ) -> None:
        super().__init__(name=f"watch-{name}", daemon=True)
        self._source, self._client, self._path, self._kind = name, client, path, kind
        self._selectors, self._inbox = selectors, inbox
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._bookmark_decoder = msgspec.json.Decoder(_Bookmark)
        self._pause_s = _SHORTEST_PAUSE_S
        self._is_troubled = False

    def run(self) -> None:
        """List and watch until the inbox is closed."""
        version = ""
        while not self._inbox.is_closed:
            try:
                if not version:
                    listing = self._client.list(self._path, self._kind, **self._selectors)
                    self._inbox.put(ListMessage(self._source, listing.items))
                    version = listing.resource_version
                    self._recovered()
                version = self._watch(version)
            except ApiError as error:
                if error.status == GONE:
                    version = ""
                else:
                    self._wait(str(error))
            except msgspec.MsgspecError as error:
                version = ""
                self._wait(f"an object at {self._path} has a form that is not understood: {error}")

        self._client.close()

    def close(self) -> None:
        """End the watch; the inbox is closed already."""
        self._client.abort()
        self.join(timeout=5.0)

    def _watch(self, version: str) -> str:
        """Deliver changes until the watch ends; return the version from which it continues."""
        try:
            for event in self._client.watch(self._path, version, **self._selectors):
                if event.type == _BOOKMARK:
                    version = self._bookmark_decoder.decode(event.object).metadata.resource_version
                    continue
                item = self._decoder.decode(event.object)
                version = item.metadata.resource_version
                self._inbox.put(ChangeMessage(self._source, event.type == "DELETED", item))
                if self._inbox.is_closed:
                    return version
            self._recovered()
        except ApiError as error:
            if error.status == GONE:
                raise
            self._wait(str(error))
        return version

    def _recovered(self) -> None:
        self._pause_s = _SHORTEST_PAUSE_S
        if self._is_troubled:
            self._is_troubled = False
            self._inbox.put(Trouble(self._source, ""))

    def _wait(self, problem: str) -> None:
        if not self._inbox.is_closed:
            self._is_troubled = True
            self._inbox.put(Trouble(self._source, problem))
            pause(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


class _Version(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion")


class _Bookmark(msgspec.Struct):
    metadata: _Version


class RequestWorkers:
    """Threads that send requests, each over its own connection."""

    def __init__(self, client: ApiClient, count: int, inbox: Inbox) -> None:
        self._client, self._inbox = client, inbox
        self._waiting: queue.SimpleQueue[tuple[int, ApiRequest] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"request-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def send(self, ticket: int, request: ApiRequest) -> None:
        """Send a request; the answer arrives in the inbox."""
        self._waiting.put((ticket, request))

    def close(self) -> None:
        """End the threads after the requests that were passed to them."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _work(self) -> None:
        while (order := self._waiting.get()) is not None:
            ticket, request = order
            try:
                response = self._client.send(request)
            except CotenantError as error:  # credentials that cannot be read
                response = Response(0, str(error).encode())
            self._inbox.put(AnswerMessage(ticket, response))
        self._client.close()


class Elector(threading.Thread):
    """Holds the Lease as long as the process lives."""

    def __init__(self, election: Election, client: ApiClient, namespace: str, clock: Clock, inbox: Inbox) -> None:
        super().__init__(name="elector", daemon=True)
        self._election, self._client, self._namespace = election, client, namespace
        self._clock, self._inbox = clock, inbox
        self._stopped = threading.Event()

    def run(self) -> None:
        """Try again and again; report when this process becomes the leader and when it is deposed."""
        was_leader, problem = False, ""
        while not self._stopped.is_set():
            is_leader = self._election.step(self._clock.now())
            if self._election.problem != problem:
                problem = self._election.problem
                self._inbox.put(Trouble("lease", problem))
            if is_leader and not was_leader:
                learned = load_learned(
                    self._client, self._namespace, lambda text: self._inbox.put(Trouble("predictions", text))
                )
                self._inbox.put(ElectionWon(learned))
            elif was_leader and not is_leader:
                holder = self._election.holder
                why = f"{holder} holds it" if holder else "it could not be renewed"
                self._inbox.put(LeaseLost(f"the Lease was lost: {problem or why}"))
                break
            was_leader = is_leader
            self._stopped.wait(RETRY_S)
        self._client.close()

    def close(self) -> None:
        """Stop renewing and give the Lease back."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=5.0)
        self._election.release()
        self._client.close()
