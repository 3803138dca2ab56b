"""The admit policies: tables of examples, then properties of any request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.node.config.file import NodeConfig, decode_config
from cotenant.node.model.admission import Plan, Reason, Reject, Reservation
from cotenant.node.model.gpu import Gpu, GpuCapacity
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.policy import admit
from cotenant.units.share import WHOLE_PPM
from tests.support.strategies import specs

GIB = 1 << 30


def requesting(memory_bytes: int, share_ppm: int) -> TenantSpec:
    return TenantSpec(Kind.OFFLINE, 7, memory_bytes=memory_bytes, share_ppm=share_ppm)


# name: the request, memory and share that are free, the refusal under reserve
REQUESTS: dict[str, tuple[TenantSpec, int, int, Reject | None]] = {
    "nothing requested": (requesting(0, 0), 0, 0, None),
    "the whole device": (requesting(16 * GIB, WHOLE_PPM), 16 * GIB, WHOLE_PPM, None),
    "a byte too many": (
        requesting(16 * GIB + 1, 0),
        16 * GIB,
        WHOLE_PPM,
        Reject(Reason.NO_MEMORY, "requested 17179869185B of device memory, but GPU 3 has only 16GiB unreserved"),
    ),
    "a millionth too many": (
        requesting(0, 500_001),
        16 * GIB,
        500_000,
        Reject(Reason.NO_SHARE, "requested a share of 50.0001%, but GPU 3 has only 50% unreserved"),
    ),
    "memory is checked first": (
        requesting(2 * GIB, 500_000),
        GIB,
        0,
        Reject(Reason.NO_MEMORY, "requested 2GiB of device memory, but GPU 3 has only 1GiB unreserved"),
    ),
    "an overbooked device has no free memory": (
        requesting(GIB, 0),
        -GIB,
        -5,
        Reject(Reason.NO_MEMORY, "requested 1GiB of device memory, but GPU 3 has only 0B unreserved"),
    ),
    "an overbooked device has no free share": (
        requesting(0, 10_000),
        GIB,
        -5,
        Reject(Reason.NO_SHARE, "requested a share of 1%, but GPU 3 has only 0% unreserved"),
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_reserve_admits_or_refuses_the_examples(name: str) -> None:
    spec, memory, share, refusal = REQUESTS[name]
    assert admit.POLICIES["reserve"](spec, GpuCapacity(3, memory, share, 1)) == refusal


@pytest.mark.parametrize("name", REQUESTS)
def test_overcommit_admits_every_example(name: str) -> None:
    spec, memory, share, _ = REQUESTS[name]
    assert admit.POLICIES["overcommit"](spec, GpuCapacity(3, memory, share, 1)) is None


@given(specs(), st.integers(0, 1 << 63), st.integers(0, WHOLE_PPM))
def test_reserve_admits_exactly_what_fits(spec: TenantSpec, memory: int, share: int) -> None:
    refusal = admit.POLICIES["reserve"](spec, GpuCapacity(0, memory, share, 0))
    assert (refusal is None) == (spec.memory_bytes <= memory and spec.share_ppm <= share)
    if refusal is not None:
        assert refusal.reason is (Reason.NO_MEMORY if spec.memory_bytes > memory else Reason.NO_SHARE)


@given(st.lists(specs(), max_size=8), st.integers(0, 1 << 63))
def test_reservations_never_exceed_the_device(requested: list[TenantSpec], memory: int) -> None:
    plan = Plan((Gpu("a", memory),))
    for number, spec in enumerate(requested):
        if admit.POLICIES["reserve"](spec, plan.capacity(0)) is None:
            plan = Plan(plan.gpus, (*plan.entries, Reservation(str(number), 0, spec.memory_bytes, spec.share_ppm)))
    assert sum(entry.memory_bytes for entry in plan.entries) <= memory
    assert sum(entry.share_ppm for entry in plan.entries) <= WHOLE_PPM


def test_config_accepts_every_policy() -> None:
    for policy in admit.POLICIES:
        assert decode_config(f"node.admit = '{policy}'", "x").node.admit == policy
    assert NodeConfig().admit in admit.POLICIES
