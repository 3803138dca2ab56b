"""The listener keeps peers that wait for memory or for a slow node, and delivers the node's own messages."""

import os
import socket
import threading

import pytest

from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.daemon.listener import PATIENCE_NS
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase
from cotenant.node.model.tenant import TenantSpec
from cotenant.runner.live_loop import READ
from tests.support.node_in_process import InProcessNode, join, received, until

pytestmark = pytest.mark.live

JOB = TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=80)
WEB = TenantSpec(Kind.ONLINE, 2, "web", memory_bytes=80)
JOIN = wire.encode(wire.Join(wire.VERSION, WEB))


def waiting(node: InProcessNode) -> int:
    return len(node.machine.snapshot().waiting)


def phase_of(node: InProcessNode) -> ExitPhase:
    return node.honest().tenants[0].tenant.lifecycle.phase


def test_peer_waiting_for_memory_is_answered_when_memory_is_free() -> None:
    with InProcessNode(gpus=(Gpu("a", 100),)) as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        newcomer = node.stranger(JOIN)
        until(lambda: waiting(node))
        node.let_patience_run_out()
        assert (waiting(node), phase_of(node)) == (1, ExitPhase.TERMINATING)
        tenant._socket.sendall(wire.encode(wire.Leave("exit 143")))
        until(lambda: [view.tenant.name for view in node.honest().tenants] == ["web"])
        newcomer.close()


def test_peer_that_disconnects_no_longer_waits() -> None:
    with InProcessNode(gpus=(Gpu("a", 100),)) as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        newcomer = node.stranger(JOIN)
        until(lambda: waiting(node))
        newcomer.close()
        until(lambda: not waiting(node))
        assert [view.tenant.name for view in node.honest().tenants] == ["job"]


def test_peer_refused_after_waiting_is_an_ordinary_peer() -> None:
    with InProcessNode(gpus=(Gpu("a", 100),)) as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        newcomer = node.stranger(JOIN)
        until(lambda: waiting(node))
        node.clock.advance(node.machine.settings.limits.make_room_ns)
        until(lambda: node.honest().turns and not waiting(node))  # a question makes the loop look at the clock
        node.let_patience_run_out()
        answers = received(newcomer)
        assert [type(answer) for answer in answers] == [wire.Refusal, wire.ProtocolViolation]


@pytest.mark.parametrize("message", [wire.EvictTenants(wire.VERSION, ["job"], 0), wire.Quit(0)], ids=["evict", "quit"])
def test_tenant_receives_the_signal_to_end_its_program(message: wire.EvictTenants | wire.Quit) -> None:
    with InProcessNode() as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        if isinstance(message, wire.Quit):
            tenant._socket.sendall(wire.encode(message))
        else:
            with Connection(node.directories.operator_socket) as person:
                answer, _ = person.ask(message)
            assert isinstance(answer, wire.Confirmation)
            assert answer.tenants == ["job"]
        until(lambda: phase_of(node) is ExitPhase.TERMINATING)
        tenant._socket.sendall(wire.encode(wire.Leave("exit 143")))
        frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
        messages: list[wire.Answer] = []
        while len(messages) < 2:
            messages += [wire.decode_answer(frame) for frame in frames.feed(tenant._socket.recv(1 << 16))]
        signal, farewell = messages
        assert isinstance(signal, wire.Signal)
        assert (signal.kind, signal.may_restart) == ("term", False)
        assert signal.why.startswith("ended: " if isinstance(message, wire.Quit) else "evicted: user ")
        assert farewell == wire.SlotReleased("exit 143")


@pytest.mark.parametrize(
    "message",
    [wire.SuspendResult(True, ""), wire.RestoreResult(False, "x"), wire.RestartReport("exit 1", 2), wire.Quit(5)],
    ids=repr,
)
def test_parent_messages_from_other_peers_change_nothing(message: wire.Request) -> None:
    with InProcessNode() as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        stranger = node.stranger(wire.encode(message))
        node.settled(2)
        before = node.honest().tenants
        stranger.close()
        assert node.honest().tenants == before
        tenant._socket.sendall(wire.encode(message))
        until(
            lambda: node.honest().tenants[0].tenant.restarts == 2 if isinstance(message, wire.RestartReport) else True
        )


def test_messages_a_slow_node_has_not_read_count_at_the_timeout() -> None:
    with InProcessNode() as node:
        held_up, goes_on = threading.Event(), threading.Event()
        read, write = os.pipe()

        def get_no_processor(mask: int) -> None:
            del mask
            node.loop.forget(read)
            held_up.set()
            goes_on.wait()

        stranger = node.stranger()
        node.settled(1)
        node.loop.watch(read, READ, get_no_processor)
        os.write(write, b"x")
        held_up.wait()
        stranger.sendall(wire.encode(wire.ListTenants(wire.VERSION)))
        node.clock.advance(PATIENCE_NS + 1)
        goes_on.set()
        stranger.shutdown(socket.SHUT_WR)
        assert [type(answer) for answer in received(stranger)] == [wire.TenantList]
        os.close(read)
        os.close(write)
