"""Can the fullest node that may exist still write what it must, and read it again?"""

import functools
import io

from cotenant.domain.event import (
    DEPARTED_LIMIT,
    SLOTS_LIMIT,
    GpuLost,
    NodeSettings,
    NodeStarted,
    TenantJoined,
    TenantLeft,
)
from cotenant.domain.gpu import WHOLE_PPM, Gpu
from cotenant.domain.protect import WHY_LIMIT
from cotenant.domain.tenant import COMMAND_LIMIT, ENDING_LIMIT, NAME_LIMIT, Kind, TenantSpec
from cotenant.format import wire
from cotenant.format.journal import MAGIC, TURN_LIMIT_BYTES, TurnReader, encode_turn
from cotenant.machine.node import NodeMachine
from tests.strategies import LARGEST, histogram_of

WIDE = "\N{GRINNING FACE}"  # four bytes in UTF-8, one character to the limits


@functools.cache
def fullest() -> NodeMachine:
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
    assert (len(node.tenants()), len(node.departed)) == (SLOTS_LIMIT, DEPARTED_LIMIT)
    assert all(WIDE * WHY_LIMIT in view.tenant.standing.why for view in node.tenants())
    return node


def test_the_fullest_node_begins_a_segment_that_can_be_read() -> None:
    turn = encode_turn(LARGEST, fullest().snapshot(), [])
    assert len(turn) <= TURN_LIMIT_BYTES
    (read,) = TurnReader(io.BytesIO(MAGIC + turn).read)
    assert read.event == fullest().snapshot()


def test_a_restart_of_the_fullest_node_can_be_read() -> None:
    node = NodeMachine()
    node.handle(fullest().snapshot(), now=0)
    event = NodeStarted(node.settings, "1", LARGEST)
    assert len(encode_turn(0, event, node.handle(event, now=0))) <= TURN_LIMIT_BYTES


def test_the_fullest_node_can_say_who_is_here() -> None:
    node = fullest()
    answer = wire.Tenants(
        wire.VERSION,
        "1",
        LARGEST,
        node.tenants(),
        list(node.departed),
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


def test_the_longest_request_fits_a_frame() -> None:
    spec = fullest().tenants()[-1].tenant.spec
    for request in (wire.Join(wire.VERSION, spec), wire.Leave(WIDE * ENDING_LIMIT)):
        assert len(wire.encode(request)) <= wire.FRAME_LIMIT_BYTES
