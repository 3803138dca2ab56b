"""A node with the maximum number of tenants can write its snapshot and read it again."""

import functools
import io

from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.journal import TURN_LIMIT_BYTES, NodeJournalReader
from cotenant.node.model.event import (
    DEPARTED_LIMIT,
    SLOTS_LIMIT,
    GpuLost,
    NodeSettings,
    NodeStarted,
    TenantJoined,
    TenantLeft,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import WHY_LIMIT
from cotenant.node.model.tenant import COMMAND_LIMIT, ENDING_LIMIT, NAME_LIMIT, TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.runner.journal import MAGIC, encode_turn
from cotenant.units.share import WHOLE_PPM
from tests.support.strategies import LARGEST, histogram_of

WIDE = "\N{GRINNING FACE}"  # four bytes in UTF-8, one character to the limits


@functools.cache
def full_node() -> NodeMachine:
    node = NodeMachine()
    gpus = tuple(Gpu(WIDE * NAME_LIMIT, LARGEST) for _ in range(16))
    node.handle(NodeStarted(NodeSettings(SLOTS_LIMIT, LARGEST, LARGEST, "spread", "overcommit", gpus), "1", 0), now=0)
    for peer in range(DEPARTED_LIMIT + SLOTS_LIMIT):
        spec = TenantSpec(
            Kind.ONLINE,
            9,
            f"{peer:0{NAME_LIMIT}}",
            LARGEST,
            LARGEST,
            WHOLE_PPM,
            WIDE * COMMAND_LIMIT,
            WIDE * COMMAND_LIMIT,
        )
        node.handle(TenantJoined(peer, LARGEST, LARGEST, spec), now=LARGEST)
        if peer < DEPARTED_LIMIT:
            node.handle(TenantLeft(peer, WIDE * ENDING_LIMIT), now=LARGEST)
    for gpu in range(len(gpus)):
        node.handle(GpuLost(gpu, WIDE * WHY_LIMIT), now=LARGEST)
    assert (len(node.tenants()), len(node.registry.departed)) == (SLOTS_LIMIT, DEPARTED_LIMIT)
    assert all(WIDE * WHY_LIMIT in view.tenant.lifecycle.why for view in node.tenants())
    return node


def test_snapshot_of_a_full_node_can_be_read() -> None:
    turn = encode_turn(LARGEST, full_node().snapshot(), [])
    assert len(turn) <= TURN_LIMIT_BYTES
    (read,) = NodeJournalReader(io.BytesIO(MAGIC + turn).read)
    assert read.event == full_node().snapshot()


def test_restart_of_a_full_node_can_be_read() -> None:
    node = NodeMachine()
    node.handle(full_node().snapshot(), now=0)
    event = NodeStarted(node.settings, "1", LARGEST)
    assert len(encode_turn(0, event, node.handle(event, now=0))) <= TURN_LIMIT_BYTES


def test_tenant_list_of_a_full_node_fits_an_answer() -> None:
    node = full_node()
    answer = wire.TenantList(
        wire.VERSION,
        "1",
        LARGEST,
        node.tenants(),
        list(node.registry.departed),
        LARGEST,
        node.turn,
        SLOTS_LIMIT,
        list(node.settings.gpus),
        histogram_of([1 << bits for bits in range(50)]),
        node.rules,
        node.watches(),
    )
    frame = wire.encode(answer)
    assert len(frame) <= wire.ANSWER_LIMIT_BYTES
    assert [wire.decode_answer(payload) for payload in wire.Frames(wire.ANSWER_LIMIT_BYTES).feed(frame)] == [answer]


def test_longest_request_fits_a_frame() -> None:
    spec = full_node().tenants()[-1].tenant.spec
    for request in (wire.Join(wire.VERSION, spec), wire.Leave(WIDE * ENDING_LIMIT)):
        assert len(wire.encode(request)) <= wire.FRAME_LIMIT_BYTES
