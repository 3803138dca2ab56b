"""A scripted node: it sends the messages of a test and records the messages that it receives."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from cotenant.gate.grant import Grant, Kind
from cotenant.node import wire
from cotenant.node.directories import Directories, listen
from cotenant.node.model.admission import Reject
from tests.support.node_processes import BOUND_S


class ScriptedTenants:
    """Grants slot 0 to every join, unless refusals are left; one tenant at a time."""

    def __init__(self, directories: Directories, refusals: list[Reject] | None = None) -> None:
        directories.runtime.mkdir(exist_ok=True)
        self.received: queue.Queue[wire.Request] = queue.Queue()
        self.environment: dict[str, str] = {}
        self.refusals = list(refusals or [])
        self._grant = Grant(0, 1, Kind.OFFLINE, 7, 0, 0, 0, -1)
        self._listener = listen(directories.tenant_socket, 0o600)
        self._peers: list[socket.socket] = []
        self._tenant: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.die()

    def die(self) -> None:
        """Close all connections, as a dying daemon does.

        No socket is closed before its thread has ended: the thread would continue with the next socket that gets the
        same descriptor, such as the listener of another node.
        """
        self._wake(self._listener)
        self._threads[0].join()  # no further peers are accepted
        for peer in self._peers:
            self._wake(peer)
        for thread in self._threads:
            thread.join()
        for open_socket in (self._listener, *self._peers):
            open_socket.close()

    @staticmethod
    def _wake(blocked: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other end has closed it, or `die` was called before
            blocked.shutdown(socket.SHUT_RDWR)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def push(self, message: wire.Push) -> None:
        assert self._tenant is not None
        self._tenant.sendall(wire.encode(message))

    def welcome(self) -> None:
        """Answer with a welcome; a tenant that resumes gets it only when a test calls this."""
        assert self._tenant is not None
        welcome = wire.Welcome(wire.VERSION, "a", self._grant, self.environment)
        self._tenant.sendall(wire.encode(welcome))

    def receive(self, kind: type[Any]) -> Any:
        """Return the next request of a tenant, which must be of this kind."""
        request = self.received.get(timeout=BOUND_S)
        assert isinstance(request, kind), request
        return request

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
        """Record the request before answering it, since the peer may send the next one, or disconnect, at once.

        A welcome is sent before: a test that has received the join may push messages, which must follow the welcome.
        """
        if isinstance(request, wire.Join) and not self.refusals:
            self._tenant = peer
            self.welcome()
        if isinstance(request, wire.Resume):
            self._tenant = peer
        self.received.put(request)
        match request:
            case wire.Join() if self._tenant is not peer:
                peer.sendall(wire.encode(wire.Refusal(self.refusals.pop(0))))
            case wire.Leave(ending=ending):
                peer.sendall(wire.encode(wire.SlotReleased(ending)))
