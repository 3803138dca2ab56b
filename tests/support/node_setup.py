"""Small nodes and tenants for the stateful tests, so that the tenants interfere with each other."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.node.model.control import ControlLimits
from cotenant.node.model.event import NodeSettings
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM

DEVICES = [(), (Gpu("a", 10),), (Gpu("a", 10), Gpu("b", 6)), (Gpu("b", 6), Gpu("a", 10)), (Gpu("tiny", 1),)]
FOUND = (Gpu("soft:1 x", 5, ("soft:1", "GPU-1f")), Gpu("3 y", 5, ("GPU-3e", "3")))


def _without_conflicts(spec: TenantSpec) -> TenantSpec:
    """Remove the memory of online tenants, for which others are evicted; test_protection_stateful.py covers that."""
    return msgspec.structs.replace(spec, memory_bytes=0) if spec.kind is Kind.ONLINE else spec


def _spec(kind: Kind, priority: int, name: str, slo_ns: int = 0, **fields: Any) -> TenantSpec:
    """Return a spec; only online tenants have objectives."""
    return TenantSpec(kind, priority, name, slo_ns if kind is Kind.ONLINE else 0, **fields)


node_settings = st.builds(
    NodeSettings,
    st.integers(1, 5),
    st.sampled_from([0, 20, 60]),
    st.sampled_from([0, 30]),
    st.sampled_from(["spread", "pack", "predict"]),
    st.sampled_from(["reserve", "overcommit"]),
    st.sampled_from(DEVICES),
    st.sampled_from([GateRules(), GateRules(GatePolicy.STRICT, 7), GateRules(GatePolicy.OPEN)]),
    control=st.sampled_from([ControlLimits(), ControlLimits(), ControlLimits(adjust="off")]),
    is_mps=st.booleans(),
    refuse_unmet=st.booleans(),
)
specs = st.builds(
    _spec,
    st.sampled_from(Kind),
    st.integers(0, 9),
    st.sampled_from(["", "", "", "web", "job", "python-1"]),
    memory_bytes=st.integers(0, 7),
    slo_ns=st.sampled_from([0, 5]),
    share_ppm=st.sampled_from([0, 100_000, 400_000, WHOLE_PPM]),
    command=st.sampled_from(["python x.py", "", "/bin/sh"]),
    gpu=st.sampled_from(["", "", "", "", "0", "soft:1", "3", "GPU-3", "0,1", "soft:1,0", "1,1"]),
    gpu_count=st.sampled_from([1, 1, 1, 2, 3]),
    use=st.sampled_from(
        [
            None,
            TaskUse(900_000, ((1_000_000, 1_000_000),), 0, 100_000, 500_000, 50_000_000, 45_000_000, 1_000_000),
            TaskUse(
                400_000, ((250_000, 700_000), (900_000, 300_000)), 0, 20_000, 90_000, 5_000_000, 2_000_000, 300_000
            ),
        ]
    ),
).map(_without_conflicts)
steps = st.integers(0, 40)
picks = st.integers(0, 99)
