"""A live or simulated listener with one peer that records its messages."""

import socket
from abc import abstractmethod
from typing import Protocol

from cotenant.node import wire
from cotenant.node.ports import Listener
from cotenant.node.sim.listener import PeerMessage, SimListener
from tests.support.node_in_process import InProcessNode, received


class ListenerFixture(Protocol):
    """A live or simulated listener with one connected peer."""

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
        self.listener = self._sim_listener = SimListener()
        self._messages: list[PeerMessage] = []
        self.peer = self._sim_listener.connect(self._messages.append)

    def received(self) -> list[PeerMessage]:
        return self._messages

    def go_away(self) -> None:
        self._sim_listener.disconnect(self.peer)

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
        self._socket.shutdown(socket.SHUT_WR)  # the node closes the connection after its last message
        messages: list[PeerMessage] = []
        for answer in received(self._socket):
            match answer:
                case wire.Welcome(grant=grant):
                    messages.append(grant)
                case wire.Refusal(reject=reject):
                    messages.append(reject)
                case wire.SlotReleased(ending=ending):
                    messages.append(ending)
                case wire.Confirmation(tenants=tenants):
                    messages.append(tuple(tenants))
                case wire.Signal() | wire.Suspend() | wire.Restore():
                    messages.append(answer)
        return messages

    def go_away(self) -> None:
        self._socket.close()
        self._node.settled(0)

    def close(self) -> None:
        self._socket.close()
        self._node.close()
