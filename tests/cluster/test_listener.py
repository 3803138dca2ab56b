"""Tests of the TLS listener of the controller."""

import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.cluster import wire
from cotenant.cluster.daemon import admin_service as admin
from cotenant.cluster.daemon.client import talk
from cotenant.cluster.daemon.identity import client_context, server_context
from cotenant.cluster.daemon.listener import NODE_PATIENCE_NS, PER_USER, STRANGERS
from cotenant.cluster.model.cluster import JobState, Quota
from cotenant.cluster.state.reasons import Reasons
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.node.model.admission import Reason
from tests.support.cluster_controllers import SETTINGS, ControllerFixture, heard, job, report
from tests.support.effort import examples
from tests.support.node_in_process import BOUND_S, open_files, until

pytestmark = pytest.mark.live

LENGTH = struct.Struct("<I")
VERSION = wire.VERSION


@pytest.fixture
def controller() -> Iterator[ControllerFixture]:
    """Whatever a test did to it, it lives, answers, and has neither connections nor descriptors left over."""
    before = open_files()
    with ControllerFixture() as made:
        yield made
        made.honest()
        made.settled(0)
    assert open_files() <= before


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


MALFORMED = {
    "an empty frame": LENGTH.pack(0),
    "four gigabytes announced": b"\xff\xff\xff\xff",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "not msgpack": frame(b"\xc1"),
    "lists in lists in lists": frame(b"\x91" * 10_000),
    "no type": frame(msgspec.msgpack.encode({"version": VERSION})),
    "an unknown type": frame(msgspec.msgpack.encode({"type": "shutdown", "version": VERSION})),
    "another version": frame(msgspec.msgpack.encode({"type": "get-authority", "version": VERSION + 1})),
    "an answer instead of a request": wire.encode(wire.Success()),
    "what is a user's to ask": wire.encode(wire.ListJobs(VERSION)),
    "what is an operator's to ask": wire.encode(wire.Revoke(VERSION, Role.NODE, "n1")),
    "no request for a certificate": wire.encode(wire.Enrol(VERSION, "x" * 20, "n1", "-----BEGIN")),
}


def test_a_peer_that_violates_the_protocol_is_notified_and_disconnected(controller: ControllerFixture) -> None:
    for what, data in MALFORMED.items():
        connection = controller.raw()
        connection.sendall(data)
        assert [type(answer) for answer in heard(connection)] == [wire.ProtocolFault], what
    controller.settled(0)


@given(st.binary(max_size=200), st.sampled_from([None, Role.NODE, Role.USER]))
@settings(max_examples=examples(8, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_do_not_affect_other_peers(controller: ControllerFixture, noise: bytes, role: Role | None) -> None:
    connection = controller.raw(None if role is None else controller.identity(role, "noisy"))
    with contextlib.suppress(OSError):
        connection.sendall(noise)
        connection.unwrap().close()
    connection.close()
    controller.honest()


def test_plain_text_and_older_tls_are_rejected(controller: ControllerFixture) -> None:
    host, _, port = controller.address.rpartition(":")
    with socket.create_connection((host, int(port)), BOUND_S) as bare:
        bare.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while bare.recv(4096):
                pass
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname = False
    older.verify_mode = ssl.CERT_NONE
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, int(port)), BOUND_S) as bare, pytest.raises(ssl.SSLError):
        older.wrap_socket(bare)


def test_incomplete_message_closes_only_its_own_connection(controller: ControllerFixture) -> None:
    host, _, port = controller.address.rpartition(":")
    node = controller.identity(Role.NODE, "n1")
    with (
        socket.create_connection((host, int(port)), BOUND_S) as silent,
        controller.raw() as slow,
        controller.raw(node) as steady,
        talk(node) as _,
    ):
        slow.sendall(LENGTH.pack(100) + b"x")
        steady.settimeout(BOUND_S)
        until(
            lambda: controller.listener.connections == 3
        )  # a node's second connection has taken the place of its first
        controller.let_patience_run_out()
        assert silent.recv(1) == b""
        until(lambda: controller.listener.connections == 1)
        controller.clock.advance(NODE_PATIENCE_NS)
        controller.honest()
        controller.settled(0)


def test_connection_limit_does_not_disconnect_nodes(controller: ControllerFixture) -> None:
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(talk(controller.identity(Role.NODE, "n1")))
        node.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        host, _, port = controller.address.rpartition(":")
        for _ in range(STRANGERS + 10):
            stack.enter_context(socket.create_connection((host, int(port)), BOUND_S))
        controller.honest()
        assert controller.listener.connections <= 40  # as many as there may be
        user = controller.identity(Role.USER, "anna")
        for _ in range(PER_USER + 4):
            stack.enter_context(talk(user)).ask(wire.ListNodes(VERSION), wire.NodePage)
        holders = [peer.holder for peer in list(controller.listener._peers.values())]
        assert sum(holder is not None and holder.name == "anna" for holder in holders) <= PER_USER
        assert node.ask(wire.ReportNode(VERSION, 2, report("n1")), wire.GrantLease).sequence == 2


def test_new_peer_is_rejected_if_nodes_use_every_connection() -> None:
    with ControllerFixture(most=3) as controller, contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(talk(controller.identity(Role.NODE, f"n{number}"))) for number in range(3)]
        for number, node in enumerate(nodes):
            node.ask(wire.ReportNode(VERSION, 1, report(f"n{number}")), wire.GrantLease)
        with pytest.raises(WorldError):
            controller.honest()
        for number, node in enumerate(nodes):
            assert node.ask(wire.ReportNode(VERSION, 2, report(f"n{number}")), wire.GrantLease).sequence == 2


def test_peer_that_does_not_read_is_disconnected(controller: ControllerFixture) -> None:
    with talk(controller.operator) as operator:
        for number in range(60):
            spec = msgspec.structs.replace(job(f"j{number}"), command=("x" * 15_000,))
            operator.ask(wire.Submit(VERSION, spec), wire.Success)
    connection = controller.raw(controller.operator)
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError, OSError):
        for _ in range(20_000):  # more questions than their answers have room on the way
            connection.send(wire.encode(wire.ListJobs(VERSION)))
    controller.honest()
    assert len(controller.honest().jobs) == 60
    connection.close()


def test_node_may_report_only_its_own_name(controller: ControllerFixture) -> None:
    with talk(controller.identity(Role.NODE, "n1")) as node:
        node.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        with pytest.raises(PeerError, match=r"certificate is node 'n1's, the report says 'n2'|'n2'"):
            node.ask(wire.ReportNode(VERSION, 2, report("n2")), wire.GrantLease)
    assert [view.node for view in controller.machine.nodes()] == ["n1"]


def test_report_is_acknowledged_with_a_lease_after_journaling(controller: ControllerFixture) -> None:
    with talk(controller.identity(Role.NODE, "n1")) as node:
        answer = node.ask(wire.ReportNode(VERSION, 7, report("n1")), wire.GrantLease)
    assert answer == wire.GrantLease(7, SETTINGS.lease_ns, SETTINGS.grace_ns)
    assert b"node-report" in (controller.home / "journal").read_bytes()


def test_new_connection_of_a_node_replaces_the_old_one(controller: ControllerFixture) -> None:
    identity = controller.identity(Role.NODE, "n1")
    with talk(identity) as old, talk(identity) as new:
        new.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        with pytest.raises(WorldError):
            old.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        assert controller.listener.is_connected("n1")


def test_identity_used_twice_gets_one_lease(controller: ControllerFixture) -> None:
    identity = controller.identity(Role.NODE, "n1")
    with talk(identity) as first:
        first.ask(wire.ReportNode(VERSION, 1, report("n1", epoch=5)), wire.GrantLease)
    with talk(identity) as second:
        second.ask(wire.ReportNode(VERSION, 1, report("n1", epoch=6)), wire.GrantLease)
    with talk(identity) as first, pytest.raises(PeerError, match=r"has started anew since; is its identity used twice"):
        first.ask(wire.ReportNode(VERSION, 2, report("n1", epoch=5)), wire.GrantLease)


def test_node_may_not_send_user_requests(controller: ControllerFixture) -> None:
    for request in (wire.Submit(VERSION, job("j")), wire.ListJobs(VERSION), wire.MakeToken(VERSION, 1, 10**9)):
        with (
            talk(controller.identity(Role.NODE, "n1")) as node,
            pytest.raises(PeerError, match=r"of a node may not send"),
        ):
            node.ask(request, wire.Success)
    with controller.as_user() as user, pytest.raises(PeerError, match=r"of a user may not send 'drain'"):
        user.ask(wire.Drain(VERSION, "n1", on=True), wire.Success)


def test_a_node_cannot_be_the_controller(controller: ControllerFixture) -> None:
    """Its certificate is of the same authority; what it may be is in it."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = server_context(controller.identity(Role.NODE, "n1"))

    def serve() -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(listener.accept()[0], server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    with socket.create_connection(listener.getsockname(), BOUND_S) as bare, pytest.raises(ssl.SSLError):
        client_context(controller.operator).wrap_socket(bare)
    thread.join(BOUND_S)
    listener.close()


def test_users_submit_and_cancel_only_their_own_jobs(controller: ControllerFixture) -> None:
    with controller.as_user("anna") as anna, controller.as_user("ben") as ben, talk(controller.operator) as operator:
        anna.ask(wire.Submit(VERSION, job("a1", "anna")), wire.Success)
        anna.ask(wire.Submit(VERSION, job("a1", "anna")), wire.Success)  # the same again is the same
        with pytest.raises(WorldError, match=r"you are user 'ben' and cannot submit for 'anna'"):
            ben.ask(wire.Submit(VERSION, job("a2", "anna")), wire.Success)
        with pytest.raises(WorldError, match=r"job 'a1' is another user's"):
            ben.ask(wire.Cancel(VERSION, "a1"), wire.Success)
        operator.ask(wire.Submit(VERSION, job("b1", "ben")), wire.Success)
        ben.ask(wire.Cancel(VERSION, "b1"), wire.Success)
        with pytest.raises(ConfigError, match=r"JOB = 'zz'"):
            operator.ask(wire.Cancel(VERSION, "zz"), wire.Success)
        operator.ask(wire.Cancel(VERSION, "a1"), wire.Success)
    assert {reported.spec.name: reported.state for reported in controller.honest().jobs} == {
        "a1": JobState.CANCELLED,
        "b1": JobState.CANCELLED,
    }


def test_command_of_a_job_is_hidden_from_other_users(controller: ControllerFixture) -> None:
    spec = msgspec.structs.replace(job("a1"), environment=(("TOKEN", "secret"),), directory="/home/anna")
    with controller.as_user("anna") as anna, controller.as_user("ben") as ben:
        anna.ask(wire.Submit(VERSION, spec), wire.Success)
        mine = anna.ask(wire.ListJobs(VERSION), wire.JobPage).jobs[0].spec
        theirs = ben.ask(wire.ListJobs(VERSION), wire.JobPage).jobs[0].spec
    assert (mine.command, mine.directory, mine.environment) == (("true",), "/home/anna", ())
    assert (theirs.command, theirs.directory, theirs.environment) == ((), "", ())


def test_pages_of_a_long_list_contain_each_job_once(
    controller: ControllerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PAGE_LIMIT", 30)
    names = [f"j{number}" for number in range(40)]
    with talk(controller.operator) as operator:
        for name in names:
            operator.ask(wire.Submit(VERSION, job(name, "anna" if name < "j2" else "ben")), wire.Success)
        first = operator.ask(wire.ListJobs(VERSION), wire.JobPage)
        second = operator.ask(wire.ListJobs(VERSION, more=True), wire.JobPage)
        assert (first.is_last, second.is_last) == (False, True)
        assert [reported.spec.name for reported in (*first.jobs, *second.jobs)] == names
        of_anna = operator.ask(wire.ListJobs(VERSION, user="anna"), wire.JobPage)
        assert {reported.spec.name for reported in of_anna.jobs} == {name for name in names if name < "j2"}
        named = operator.ask(wire.ListJobs(VERSION, ("j3", "nobody")), wire.JobPage)
        assert [reported.spec.name for reported in named.jobs] == ["j3"]


def test_open_gpus_are_counted_once_per_page(controller: ControllerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Counted(Reasons):
        @cached_property
        def _open(self) -> Counter[int]:
            looks.append(1)
            return Counter()

    monkeypatch.setattr(admin, "Reasons", Counted)
    with talk(controller.identity(Role.NODE, "n1")) as node, talk(controller.operator) as operator:
        node.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        for number in range(20):
            operator.ask(
                wire.Submit(VERSION, msgspec.structs.replace(job(f"j{number}"), gpus=number + 1)), wire.Success
            )
        assert len(operator.ask(wire.ListJobs(VERSION), wire.JobPage).jobs) == 20
    assert len(looks) == 1


def test_orders_reach_the_connected_node(controller: ControllerFixture) -> None:
    with talk(controller.identity(Role.NODE, "n1")) as node, talk(controller.operator) as operator:
        node.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        operator.ask(wire.Submit(VERSION, job("j1")), wire.Success)
        controller.clock.advance(3 * 10**9)
        operator.ask(wire.ListNodes(VERSION), wire.NodePage)  # makes the loop go round: a round is due
        order = node.ask(wire.ReportNode(VERSION, 2, report("n1")), wire.NodeOrder).action
        assert (order.node, order.attempt.job) == ("n1", "j1")


def test_operators_drain_nodes_and_set_quotas(controller: ControllerFixture) -> None:
    with talk(controller.operator) as operator, talk(controller.identity(Role.NODE, "n1")) as node:
        node.ask(wire.ReportNode(VERSION, 1, report("n1", gpus=2)), wire.GrantLease)
        operator.ask(wire.Drain(VERSION, "n1", on=True), wire.Success)
        operator.ask(wire.SetQuota(VERSION, Quota("anna", 1)), wire.Success)
        with pytest.raises(ConfigError, match=r"NODE = 'n9'"):
            operator.ask(wire.Drain(VERSION, "n9", on=True), wire.Success)
        line = operator.ask(wire.ListNodes(VERSION), wire.NodePage).nodes[0]
    assert (line.node, line.gpus, line.types, line.is_drained, line.is_connected) == ("n1", 2, ["V100"], True, True)
    assert controller.machine.snapshot().quotas == (Quota("anna", 1),)


def test_node_is_forgotten_only_when_no_job_can_run_there(controller: ControllerFixture) -> None:
    with talk(controller.identity(Role.NODE, "n1")) as node:
        node.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
    forget = wire.Forget(VERSION, "n1")
    with talk(controller.operator) as operator:
        with pytest.raises(ConfigError, match=r"NODE = 'n1': is not silent"):
            operator.ask(forget, wire.Success)
        with pytest.raises(ConfigError, match=r"NODE = 'n9': no node is called"):
            operator.ask(wire.Forget(VERSION, "n9"), wire.Success)
    controller.clock.advance(SETTINGS.lease_ns + SETTINGS.grace_ns)
    controller.honest()
    with talk(controller.operator) as operator:
        operator.ask(forget, wire.Success)
        assert operator.ask(wire.ListNodes(VERSION), wire.NodePage).nodes == []


def test_refusal_contains_its_reason(controller: ControllerFixture) -> None:
    with controller.raw(controller.operator) as connection:
        connection.sendall(wire.encode(wire.Cancel(VERSION, "zz")))
        frames = wire.answer_frames().feed(connection.recv(4096))
    answer = wire.decode_answer(frames[0])
    assert isinstance(answer, wire.Refusal)
    assert answer.reject.reason is Reason.UNKNOWN_JOB


def test_oversized_report_is_rejected(controller: ControllerFixture) -> None:
    connection = controller.raw(controller.identity(Role.NODE, "n1"))
    connection.sendall(LENGTH.pack(wire.NODE_LIMIT_BYTES + 1))
    answers = heard(connection)
    assert [type(answer) for answer in answers] == [wire.ProtocolFault]
