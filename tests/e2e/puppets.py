"""A node on strings: it says what a test makes it say, and keeps what it hears."""

import queue
import socket
import threading
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
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.die()
        self._pages.close()

    def die(self) -> None:
        """As a daemon dies: without a word."""
        self._listener.close()
        for peer in self._peers:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                peer.close()

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
            threading.Thread(target=self._serve, args=[peer], daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        frames = wire.Frames()
        try:
            while data := peer.recv(1 << 16):
                for frame in frames.feed(data):
                    self._answer(peer, wire.decode_request(frame))
        except OSError:
            return

    def _answer(self, peer: socket.socket, request: wire.Request) -> None:
        match request:
            case wire.Join() if self.refusals:
                peer.sendall(wire.encode(wire.Refused(self.refusals.pop(0))))
            case wire.Join():
                self._tenant = peer
                welcome = wire.Welcome(wire.VERSION, "a", self._terms, self.environment)
                socket.send_fds(peer, [wire.encode(welcome)], [self._pages.publish(self._terms, 0)])
            case wire.Leave(ending=ending):
                peer.sendall(wire.encode(wire.Farewell(ending)))
        self.heard.put(request)
