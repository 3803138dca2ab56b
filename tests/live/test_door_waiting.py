"""Does the door keep whoever waits, for room or for a node that is held up, and carry what a node says by itself?"""

import os
import socket
import threading

import pytest

from cotenant.domain.gpu import Gpu
from cotenant.domain.protect import Stage
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format import wire
from cotenant.live.client import Connection
from cotenant.live.door import PATIENCE_NS
from cotenant.live.loop import READ
from tests.live.indoors import Indoors, heard, join, until

JOB = TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=80)
WEB = TenantSpec(Kind.ONLINE, 2, "web", memory_bytes=80)
JOIN = wire.encode(wire.Join(wire.VERSION, WEB))


def waiting(node: Indoors) -> int:
    return len(node.machine.snapshot().waiting)


def stage(node: Indoors) -> Stage:
    return node.honest().tenants[0].tenant.standing.stage


def test_who_waits_for_room_may_be_silent_and_is_answered_when_there_is_some() -> None:
    with Indoors(gpus=(Gpu("a", 100),)) as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        newcomer = node.stranger(JOIN)
        until(lambda: waiting(node))
        node.let_patience_run_out()
        assert (waiting(node), stage(node)) == (1, Stage.TERMINATING)
        tenant._socket.sendall(wire.encode(wire.Leave("exit 143")))
        until(lambda: [view.tenant.name for view in node.honest().tenants] == ["web"])
        newcomer.close()


def test_who_hangs_up_while_waiting_waits_no_more() -> None:
    with Indoors(gpus=(Gpu("a", 100),)) as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        newcomer = node.stranger(JOIN)
        until(lambda: waiting(node))
        newcomer.close()
        until(lambda: not waiting(node))
        assert [view.tenant.name for view in node.honest().tenants] == ["job"]


def test_who_was_refused_after_waiting_is_an_ordinary_peer_again() -> None:
    with Indoors(gpus=(Gpu("a", 100),)) as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        newcomer = node.stranger(JOIN)
        until(lambda: waiting(node))
        node.clock.advance(node.machine.settings.limits.make_room_ns)
        until(lambda: node.honest().turns and not waiting(node))  # a question makes the loop look at the clock
        node.let_patience_run_out()
        answers = heard(newcomer)
        assert [type(answer) for answer in answers] == [wire.Refused, wire.Wrong]


@pytest.mark.parametrize("asks", [wire.EvictTenants(wire.VERSION, ["job"], 0), wire.Quit(0)], ids=["evict", "quit"])
def test_a_tenant_hears_that_its_program_is_to_end(asks: wire.EvictTenants | wire.Quit) -> None:
    with Indoors() as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        if isinstance(asks, wire.Quit):
            tenant._socket.sendall(wire.encode(asks))
        else:
            with Connection(node.path) as person:
                answer, _ = person.ask(asks)
            assert isinstance(answer, wire.Confirmed)
            assert answer.tenants == ["job"]
        until(lambda: stage(node) is Stage.TERMINATING)
        tenant._socket.sendall(wire.encode(wire.Leave("exit 143")))
        frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
        said: list[wire.Answer] = []
        while len(said) < 2:
            said += [wire.decode_answer(frame) for frame in frames.feed(tenant._socket.recv(1 << 16))]
        signal, farewell = said
        assert isinstance(signal, wire.Signal)
        assert (signal.kind, signal.again) == ("term", False)
        assert signal.why.startswith("ended: " if isinstance(asks, wire.Quit) else "evicted: user ")
        assert farewell == wire.Farewell("exit 143")


@pytest.mark.parametrize(
    "said", [wire.Suspended(True, ""), wire.Restored(False, "x"), wire.Restarted("exit 1", 2), wire.Quit(5)], ids=repr
)
def test_what_only_a_parent_can_say_changes_nothing_from_others(said: wire.Request) -> None:
    with Indoors() as node, Connection(node.path) as tenant:
        join(tenant, JOB)
        stranger = node.stranger(wire.encode(said))
        node.settled(2)
        before = node.honest().tenants
        stranger.close()
        assert node.honest().tenants == before
        tenant._socket.sendall(wire.encode(said))
        until(lambda: node.honest().tenants[0].tenant.restarts == 2 if isinstance(said, wire.Restarted) else True)


def test_words_that_a_node_was_too_slow_to_read_are_heard_when_patience_ends() -> None:
    with Indoors() as node:
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
        stranger.sendall(wire.encode(wire.List(wire.VERSION)))
        node.clock.advance(PATIENCE_NS + 1)
        goes_on.set()
        stranger.shutdown(socket.SHUT_WR)
        assert [type(answer) for answer in heard(stranger)] == [wire.Tenants]
        os.close(read)
        os.close(write)
