"""A client waits for a busy node and reports plainly that no node runs."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cotenant.errors import PeerError, WorldError
from cotenant.node import wire
from cotenant.node.client.connection import DESCRIPTORS_LIMIT, Connection, NodeUnavailableError, list_tenants
from cotenant.node.directories import Directories, listen

pytestmark = pytest.mark.live

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


def test_missing_node_names_the_path_and_the_remedy(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NodeUnavailableError, match="start one with: cotenant node"):
            Connection(path)


def test_full_backlog_is_waited_for(tmp_path: Path) -> None:
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


def test_node_that_accepts_no_connections_is_not_taken_for_a_missing_node(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with Connection(path), pytest.raises(WorldError, match="accepts no connections") as raised:
            Connection(path, 1.0)
    assert not isinstance(raised.value, NodeUnavailableError), (
        "nobody must start a second node because the first is busy"
    )


@contextlib.contextmanager
def disturbed() -> Iterator[None]:
    """A signal now and again, as from children that end."""
    over, waiting = threading.Event(), threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)

    def disturb() -> None:
        while not over.wait(0.02):
            signal.pthread_kill(waiting, signal.SIGUSR1)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        signal.signal(signal.SIGUSR1, before)


def test_signals_neither_end_the_wait_for_a_full_backlog_nor_prolong_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with Connection(path), disturbed():
            with pytest.raises(WorldError, match="accepts no connections"):
                Connection(path, 0.3)

            def accept() -> None:
                listener.accept()[0].close()

            slowly = threading.Timer(0.2, accept)
            slowly.start()
            with Connection(path) as waited:
                assert waited._socket.getpeername() == str(path)
            slowly.join(30)


def directories_of(path: Path) -> Directories:
    """Return directories whose operator socket is this one."""
    path.with_name("operator.sock").symlink_to(path)
    return Directories(path.parent, path.parent)


def test_node_that_does_not_answer_raises_world_error(serve: Serve) -> None:
    path = serve(lambda peer: peer.recv(100))
    with pytest.raises(WorldError, match="does not answer"):
        list_tenants(directories_of(path), 0.2)


def test_node_that_dies_during_a_request_is_reported(serve: Serve) -> None:
    with pytest.raises(NodeUnavailableError, match="was lost"):
        list_tenants(directories_of(serve(lambda peer: None)))


@pytest.mark.parametrize(
    "answer, raised",
    [
        (wire.encode(wire.ProtocolViolation("no")), "closed the connection: no"),
        (wire.encode(wire.SlotReleased("x")), "answered SlotReleased"),
        (b"\x01\0\0\0\xc1", "cannot be read"),
        (b"\0\0\0\0", "announces 0"),
        (b"\xff\xff\xff\xff", "announces 4294967295"),
    ],
)
def test_invalid_answer_raises_peer_error(serve: Serve, answer: bytes, raised: str) -> None:
    with pytest.raises(PeerError, match=raised):
        list_tenants(directories_of(serve(lambda peer: peer.sendall(answer))))


def test_descriptors_of_an_unfinished_answer_are_closed(serve: Serve) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    begun = wire.encode(wire.SlotReleased("x"))[:3]
    with (
        pytest.raises(NodeUnavailableError),
        Connection(serve(lambda peer: socket.send_fds(peer, [begun], [0, 1, 2]))) as connection,
    ):
        connection.ask(wire.ListTenants(wire.VERSION))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_only_the_descriptors_of_a_welcome_are_kept(serve: Serve) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    farewell = wire.encode(wire.SlotReleased("x"))
    with Connection(serve(lambda peer: socket.send_fds(peer, [farewell], [0, 1, 2, 2, 2, 2]))) as connection:
        _, kept = connection.ask(wire.ListTenants(wire.VERSION))
        assert len(kept) == DESCRIPTORS_LIMIT
        for descriptor in kept:
            os.close(descriptor)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
