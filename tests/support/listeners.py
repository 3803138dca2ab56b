"""A live or simulated listener with one peer that records its messages."""

import socket
from abc import abstractmethod
from typing import Protocol

from cotenant.node import wire
from cotenant.node.ports import Listener
from cotenant.node.sim.listener import PeerMessage, SimListener
from tests.support.node_in_process import InProcessNode, received


class ListenerFixture(Protocol):
    """A listener of either side with one peer before it."""

    listener: Listener
    peer: int

    @abstractmethod
    def received(self) -> list[PeerMessage]: ...
    @abstractmethod
    def go_away(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...


class SimListenerFixture(ListenerFixture):
    def __init__(self) -> None:
        self.listener = made = SimListener()
        self._made = made
        self._heard: list[PeerMessage] = []
        self.peer = made.connect(self._heard.append)

    def received(self) -> list[PeerMessage]:
        return self._heard

    def go_away(self) -> None:
        self._made.disconnect(self.peer)

    def close(self) -> None:
        pass


class LiveListenerFixture(ListenerFixture):
    def __init__(self) -> None:
        self._node = InProcessNode(bind=False)
        self.listener = self._node.listener
        self._socket = self._node.stranger()
        self._node.settled(1)
        [self.peer] = self._node.listener._peers

    def received(self) -> list[PeerMessage]:
        self._socket.shutdown(socket.SHUT_WR)  # the node hangs up once it has said everything
        words: list[PeerMessage] = []
        for answer in received(self._socket):
            match answer:
                case wire.Welcome(grant=grant):
                    words.append(grant)
                case wire.Refusal(reject=reject):
                    words.append(reject)
                case wire.SlotReleased(ending=ending):
                    words.append(ending)
                case wire.Confirmation(tenants=tenants):
                    words.append(tuple(tenants))
                case wire.Signal() | wire.Suspend() | wire.Restore():
                    words.append(answer)
        return words

    def go_away(self) -> None:
        self._socket.close()
        self._node.settled(0)

    def close(self) -> None:
        self._socket.close()
        self._node.close()
