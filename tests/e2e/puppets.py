"""A node on strings: it says what a test makes it say, and keeps what it hears."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from cotenant.domain.plan import Reject
from cotenant.domain.tenant import Kind, Terms
from cotenant.format import wire
from cotenant.live.directory import Places, listen
from cotenant.live.page import LivePages
from tests.e2e.stage import BOUND_S


class PuppetNode:
    """Welcomes everybody into slot 0, unless it has refusals left; one tenant at a time."""

    def __init__(self, places: Places, refusals: list[Reject] | None = None) -> None:
        places.runtime.mkdir(exist_ok=True)
        self.heard: queue.Queue[wire.Request] = queue.Queue()
        self.environment: dict[str, str] = {}
        self.refusals = list(refusals or [])
        self._pages = LivePages(places.pages)
        self._terms = Terms(0, 1, Kind.OFFLINE, 7, 0, 0, 0, -1)
        self._listener = listen(places.socket, -1)
        self._peers: list[socket.socket] = []
        self._tenant: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.die()
        self._pages.close()

    def die(self) -> None:
        """As a daemon dies: without a word.

        Nothing is closed before our threads have left it: one that still waited there would go on with whatever gets
        the same number next, such as the door of another node.
        """
        self._wake(self._listener)
        self._threads[0].join()  # from here on there are no more peers
        for peer in self._peers:
            self._wake(peer)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._peers):
            one.close()

    @staticmethod
    def _wake(waited_at: socket.socket) -> None:
        with contextlib.suppress(OSError):  # its other end is gone already, or we died before
            waited_at.shutdown(socket.SHUT_RDWR)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def push(self, said: wire.Push) -> None:
        assert self._tenant is not None
        self._tenant.sendall(wire.encode(said))

    def hear(self, kind: type[Any]) -> Any:
        """The next request of a tenant, which must be of this kind."""
        said = self.heard.get(timeout=BOUND_S)
        assert isinstance(said, kind), said
        return said

    def _accept(self) -> None:
        while True:
            try:
                peer = self._listener.accept()[0]
            except OSError:
                return
            self._peers.append(peer)
            self._begin(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        frames = wire.Frames()
        try:
            while data := peer.recv(1 << 16):
                for frame in frames.feed(data):
                    self._answer(peer, wire.decode_request(frame))
        except OSError:
            return

    def _answer(self, peer: socket.socket, request: wire.Request) -> None:
        """What is heard is kept before it is answered: who has its answer says the next thing, or is gone, at once.

        But for a welcome: what a test pushes once it has heard of the join comes after it.
        """
        if isinstance(request, wire.Join) and not self.refusals:
            self._tenant = peer
            welcome = wire.Welcome(wire.VERSION, "a", self._terms, self.environment)
            socket.send_fds(peer, [wire.encode(welcome)], [self._pages.publish(self._terms, 0)])
        self.heard.put(request)
        match request:
            case wire.Join() if self._tenant is not peer:
                peer.sendall(wire.encode(wire.Refused(self.refusals.pop(0))))
            case wire.Leave(ending=ending):
                peer.sendall(wire.encode(wire.Farewell(ending)))
