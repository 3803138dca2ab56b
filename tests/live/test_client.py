"""Does a client wait for a busy node, and say plainly when there is none?"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cotenant.errors import PeerError, WorldError
from cotenant.format import wire
from cotenant.live.client import HANDED, Connection, NodeAwayError, tenants_of
from cotenant.live.clock import pause
from cotenant.live.directory import listen

Serve: TypeAlias = Callable[[Callable[[socket.socket], Any]], Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Answer the first connection as the test likes; the socket's path."""
    threads = []
    listener = listen(tmp_path / "s", -1)

    def start(answer: Callable[[socket.socket], Any]) -> Path:
        def once() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)  # its question
                answer(peer)

        threads.append(threading.Thread(target=once))
        threads[-1].start()
        return tmp_path / "s"

    yield start
    for thread in threads:
        thread.join(30)
    listener.close()


def test_nobody_there_names_the_path_and_the_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NodeAwayError, match="start one with: cotenant node"):
            Connection(path)


def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    waiting = []
    full = False
    while not full:
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        waiting.append(one)
        try:
            one.connect(str(path))
        except BlockingIOError:
            full = True
    accepted: list[socket.socket] = []

    def accept() -> None:
        while len(accepted) < len(waiting):
            accepted.append(listener.accept()[0])

    slowly = threading.Timer(0.2, accept)
    slowly.start()
    Connection(path).close()
    slowly.join(30)
    for one in (*waiting, *accepted, listener):
        one.close()


def test_a_node_that_takes_no_connections_is_not_taken_for_none(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with Connection(path), pytest.raises(WorldError, match="takes no connections") as told:
            Connection(path, 1.0)
    assert not isinstance(told.value, NodeAwayError), "nobody must start a second node because the first is busy"


def test_who_waits_for_a_full_backlog_is_not_taken_for_connected_by_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "s"
    waiting = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)

    def disturb_and_accept() -> None:
        for _ in range(20):
            pause(0.01)
            signal.pthread_kill(waiting, signal.SIGUSR1)
        listener.accept()[0].close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with Connection(path):
            thread = threading.Thread(target=disturb_and_accept)
            thread.start()
            with Connection(path) as waited:
                assert waited._socket.getpeername() == str(path)
            thread.join(30)
    signal.signal(signal.SIGUSR1, before)


def test_a_node_that_does_not_answer_is_a_world_error(serve: Serve) -> None:
    path = serve(lambda peer: peer.recv(100))
    with pytest.raises(WorldError, match="does not answer"):
        tenants_of(path, 0.2)


def test_a_node_that_dies_meanwhile_is_away(serve: Serve) -> None:
    with pytest.raises(NodeAwayError, match="went away"):
        tenants_of(serve(lambda peer: None))


@pytest.mark.parametrize(
    "answer, told",
    [
        (wire.encode(wire.Wrong("no")), "refuses to talk: no"),
        (wire.encode(wire.Farewell("x")), "answered Farewell"),
        (b"\x01\0\0\0\xc1", "cannot be read"),
        (b"\0\0\0\0", "announces 0"),
        (b"\xff\xff\xff\xff", "announces 4294967295"),
    ],
)
def test_a_strange_answer_is_the_peer_s_error(serve: Serve, answer: bytes, told: str) -> None:
    with pytest.raises(PeerError, match=told):
        tenants_of(serve(lambda peer: peer.sendall(answer)))


def test_descriptors_of_an_answer_that_never_ends_are_not_kept(serve: Serve) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    begun = wire.encode(wire.Farewell("x"))[:3]
    with (
        pytest.raises(NodeAwayError),
        Connection(serve(lambda peer: socket.send_fds(peer, [begun], [0, 1, 2]))) as connection,
    ):
        connection.ask(wire.List(wire.VERSION))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_of_many_descriptors_only_those_of_a_welcome_are_kept(serve: Serve) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    farewell = wire.encode(wire.Farewell("x"))
    with Connection(serve(lambda peer: socket.send_fds(peer, [farewell], [0, 1, 2, 2, 2, 2]))) as connection:
        _, kept = connection.ask(wire.List(wire.VERSION))
        assert len(kept) == HANDED
        for descriptor in kept:
            os.close(descriptor)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
