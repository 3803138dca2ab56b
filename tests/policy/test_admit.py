"""Whom does each policy let in? Tables first, then what holds for any request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.gpu import WHOLE_PPM, Gpu, GpuRoom
from cotenant.domain.plan import Plan, Reason, Reject, Seat
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format.config import NodeConfig, decode_config
from cotenant.policy import admit
from tests.strategies import specs

GIB = 1 << 30


def asks(memory_bytes: int, share_ppm: int) -> TenantSpec:
    return TenantSpec(Kind.OFFLINE, 7, memory_bytes=memory_bytes, share_ppm=share_ppm)


# name: the request, memory and share that are free, the refusal under reserve
REQUESTS: dict[str, tuple[TenantSpec, int, int, Reject | None]] = {
    "nothing asked": (asks(0, 0), 0, 0, None),
    "all there is": (asks(16 * GIB, WHOLE_PPM), 16 * GIB, WHOLE_PPM, None),
    "a byte too many": (
        asks(16 * GIB + 1, 0),
        16 * GIB,
        WHOLE_PPM,
        Reject(Reason.NO_MEMORY, "asked for 17179869185B of device memory, GPU 3 has 16GiB not promised yet"),
    ),
    "a millionth too many": (
        asks(0, 500_001),
        16 * GIB,
        500_000,
        Reject(Reason.NO_SHARE, "asked for a share of 50.0001%, GPU 3 has 50% not promised yet"),
    ),
    "memory is looked at first": (
        asks(2 * GIB, 500_000),
        GIB,
        0,
        Reject(Reason.NO_MEMORY, "asked for 2GiB of device memory, GPU 3 has 1GiB not promised yet"),
    ),
    "an overbooked device has nothing": (
        asks(GIB, 0),
        -GIB,
        -5,
        Reject(Reason.NO_MEMORY, "asked for 1GiB of device memory, GPU 3 has 0B not promised yet"),
    ),
    "an overbooked share is none": (
        asks(0, 10_000),
        GIB,
        -5,
        Reject(Reason.NO_SHARE, "asked for a share of 1%, GPU 3 has 0% not promised yet"),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_reserve_promises_what_is_there(name: str) -> None:
    spec, memory, share, refusal = REQUESTS[name]
    assert admit.POLICIES["reserve"](spec, GpuRoom(3, memory, share, 1)) == refusal


@pytest.mark.parametrize("name", REQUESTS)
def test_overcommit_promises_everything(name: str) -> None:
    spec, memory, share, _ = REQUESTS[name]
    assert admit.POLICIES["overcommit"](spec, GpuRoom(3, memory, share, 1)) is None


@given(specs(), st.integers(0, 1 << 63), st.integers(0, WHOLE_PPM))
def test_reserve_admits_exactly_what_fits(spec: TenantSpec, memory: int, share: int) -> None:
    refusal = admit.POLICIES["reserve"](spec, GpuRoom(0, memory, share, 0))
    assert (refusal is None) == (spec.memory_bytes <= memory and spec.share_ppm <= share)
    if refusal is not None:
        assert refusal.reason is (Reason.NO_MEMORY if spec.memory_bytes > memory else Reason.NO_SHARE)


@given(st.lists(specs(), max_size=8), st.integers(0, 1 << 63))
def test_promises_under_reserve_never_exceed_the_device(asked: list[TenantSpec], memory: int) -> None:
    plan = Plan((Gpu("a", memory),))
    for number, spec in enumerate(asked):
        if admit.POLICIES["reserve"](spec, plan.room(0)) is None:
            plan = Plan(plan.gpus, (*plan.seats, Seat(str(number), 0, spec.memory_bytes, spec.share_ppm)))
    assert sum(seat.memory_bytes for seat in plan.seats) <= memory
    assert sum(seat.share_ppm for seat in plan.seats) <= WHOLE_PPM


def test_the_config_knows_every_policy() -> None:
    for policy in admit.POLICIES:
        assert decode_config(f"node.admit = '{policy}'", "x").node.admit == policy
    assert NodeConfig().admit in admit.POLICIES
