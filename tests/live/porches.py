"""A door of either side, live or not, with one peer before it that says what it heard."""

import socket
from abc import abstractmethod
from typing import Protocol

from cotenant.format import wire
from cotenant.port import Door
from cotenant.sim.door import Heard, SimDoor
from tests.live.indoors import Indoors, heard


class Porch(Protocol):
    """A door of either side with one peer before it."""

    door: Door
    peer: int

    @abstractmethod
    def heard(self) -> list[Heard]: ...
    @abstractmethod
    def go_away(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...


class SimPorch(Porch):
    def __init__(self) -> None:
        self.door = made = SimDoor()
        self._made = made
        self._heard: list[Heard] = []
        self.peer = made.connect(self._heard.append)

    def heard(self) -> list[Heard]:
        return self._heard

    def go_away(self) -> None:
        self._made.disconnect(self.peer)

    def close(self) -> None:
        pass


class LivePorch(Porch):
    def __init__(self) -> None:
        self._node = Indoors(bind=False)
        self.door = self._node.door
        self._socket = self._node.stranger()
        self._node.settled(1)
        [self.peer] = self._node.door._peers

    def heard(self) -> list[Heard]:
        self._socket.shutdown(socket.SHUT_WR)  # the node hangs up once it has said everything
        words: list[Heard] = []
        for answer in heard(self._socket):
            match answer:
                case wire.Welcome(terms=terms):
                    words.append(terms)
                case wire.Refused(reject=reject):
                    words.append(reject)
                case wire.Farewell(ending=ending):
                    words.append(ending)
                case wire.Confirmed(tenants=tenants):
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
