"""Tests of the connection of a node to the controller."""

import socket
import threading
from collections.abc import Iterator

import pytest

from cotenant.cluster import wire
from cotenant.cluster.daemon import link as link_room
from cotenant.cluster.daemon.client import talk
from cotenant.cluster.daemon.identity import Identity, read_identity
from cotenant.cluster.daemon.link import ControllerLink, Order
from cotenant.cluster.model.event import StartJob
from cotenant.cluster.wire import Role
from cotenant.runner.clock import LiveClock
from cotenant.runner.live_loop import IoLoop
from tests.support.cluster_controllers import SETTINGS, ControllerFixture, job, report
from tests.support.node_in_process import BOUND_S, descriptors, until

pytestmark = pytest.mark.live


class Node:
    """The node's end, in a thread: tells its report whenever it is asked to."""

    def __init__(self, identity: Identity) -> None:
        self.clock = LiveClock(0)
        self.loop = IoLoop(self.clock)
        self.orders: list[Order] = []
        self.said: list[str] = []
        self.link = ControllerLink(self.loop, self.clock, identity, self.orders.append, self.said.append)
        self.name = identity.name
        self.wants: list[str] = ["tell"]
        self.loop.add_timer(self)
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def next_wakeup(self) -> int:
        return self.clock.now() + 5_000_000 if not self.wants else 0

    def wake(self, now: int) -> None:
        while self.wants:
            match self.wants.pop():
                case "tell":
                    self.link.tell(report(self.name))

    def close(self) -> None:
        self.loop.stop("over")
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()
        self.link.close()
        self.loop.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long between two tries."""
    monkeypatch.setattr(link_room, "FIRST_WAIT_NS", 1_000_000)
    monkeypatch.setattr(link_room, "LONGEST_WAIT_NS", 20_000_000)


@pytest.fixture
def controller() -> Iterator[ControllerFixture]:
    with ControllerFixture() as made:
        yield made


def test_link_delivers_reports_orders_and_leases(controller: ControllerFixture) -> None:
    node = Node(controller.joined("n1"))
    try:
        until(lambda: node.link.leased_until is not None)
        assert (node.link.lease_ns, node.link.grace_ns) == (SETTINGS.lease_ns, SETTINGS.grace_ns)
        assert node.link.leased_until is not None
        assert node.link.leased_until <= node.clock.now() + SETTINGS.lease_ns
        assert node.link.is_up
        with talk(controller.operator) as operator:
            operator.ask(wire.Submit(wire.VERSION, job("j1")), wire.Success)
        controller.clock.advance(3 * 10**9)
        node.wants.append("tell")
        until(lambda: node.orders)
        assert isinstance(node.orders[0], StartJob)
        assert node.orders[0].attempt.job == "j1"
    finally:
        node.close()


def test_link_reconnects_to_a_restarted_controller() -> None:
    before = descriptors()
    kept = socket.socket()  # bound and not listening: nobody else is given the port while the controller is away
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port = kept.getsockname()[1]
    first = ControllerFixture(port=port)
    node = Node(first.joined("n1"))
    try:
        until(lambda: node.link.leased_until is not None)
        lease = node.link.leased_until
        first.close(keep=True)
        until(lambda: any("trying again" in said for said in node.said))
        assert not node.link.is_up
        second = ControllerFixture(port=port, home=first.home)
        try:
            until(lambda: node.link.leased_until != lease)
            assert [view.node for view in second.machine.nodes()] == ["n1"]
            assert any("connected to the controller" in said for said in node.said)
        finally:
            second.close()
    finally:
        node.close()
        kept.close()
    until(lambda: descriptors() <= before)  # fewer, where an earlier test's are closed only now


def test_link_tries_every_address_of_a_name(controller: ControllerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(controller.address.rpartition(":")[2])
    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    addresses = [(*kind, ("127.0.0.1", 1)), (*kind, ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    identity = controller.identity(Role.NODE, "n1")
    node = Node(identity)
    try:
        until(lambda: node.link.leased_until is not None)
        assert len(node.said) == 2  # that the first leads nowhere, and that the second does
    finally:
        node.close()


def test_link_logs_a_problem_once_and_retries(controller: ControllerFixture) -> None:
    identity = controller.joined("n1")
    with talk(controller.operator) as operator:
        operator.ask(wire.Revoke(wire.VERSION, Role.NODE, "n1"), wire.Success)
    node = Node(identity)
    try:
        until(lambda: node.link._failures > 3)
        assert [said for said in node.said if "was revoked" in said] == node.said
        assert len(node.said) == 1
        assert node.link.leased_until is None
    finally:
        node.close()


def test_link_renews_an_old_certificate(controller: ControllerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = controller.identity(Role.NODE, "n1", days=0.001)
    monkeypatch.setattr(Identity, "is_old", lambda own, now: own.until_ns == identity.until_ns)
    node = Node(identity)
    try:
        until(lambda: read_identity(identity.path).until_ns > identity.until_ns)
        node.wants.append("tell")
        until(lambda: node.link.is_up and not node.link._new_key)
    finally:
        node.close()
    with talk(read_identity(identity.path)) as renewed:
        assert renewed.ask(wire.ReportNode(wire.VERSION, 1, report("n1")), wire.GrantLease).sequence == 1
