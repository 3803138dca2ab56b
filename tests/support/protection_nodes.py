"""Tenants, samples and steps for the stateful tests of protection."""

from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, GpuSample, OnPressure, ProtectLimits
from cotenant.node.model.tenant import TenantSpec

GPUS = (Gpu("a", 1000), Gpu("b", 600))
LIMITS = ProtectLimits(
    period_ns=1,
    samples=2,
    over_samples=2,
    calm_samples=2,
    init_samples=1,
    backoff_ns=20,
    backoff_cap_ns=60,
    backoff_window_ns=200,
    drain_ns=5,
    grace_ns=20,
    fault_grace_ns=8,
    obey_ns=3,
    make_room_ns=15,
    online_first_ns=10,
)
CALM = GpuSample(100_000, 100_000, 1_000_000, 100, 1000, 1, 1)
FULL = GpuSample(100_000, 100_000, 1_000_000, 999, 1000, 500, 499)
SAMPLES = (CALM, CALM, FULL, GpuSample(), GpuSample(900_000, 100_000, 550_000, 700, 1000, 1, 1))

R, D, T, F, K = ExitPhase.RUNNING, ExitPhase.DRAINING, ExitPhase.TERMINATING, ExitPhase.FINISHING, ExitPhase.KILLED
G, S, B = ExitPhase.SUSPENDING, ExitPhase.SUSPENDED, ExitPhase.RESTORING
STEPS = {(R, D), (R, T), (D, T), (T, F), (F, K), (T, K), (K, K)}
"""Exit steps. A hung tenant is killed from any phase; a tenant without a device skips draining."""
SUSPENSIONS = {(R, G), (G, S), (S, B), (B, R), (B, S), (G, R), (S, R)}
"""Steps of suspension; by the last two, a program that was restarted in its slot."""

specs = st.builds(
    TenantSpec,
    st.sampled_from(Kind),
    st.integers(0, 9),
    st.sampled_from(["", "", "web", "job"]),
    memory_bytes=st.sampled_from([0, 100, 300, 500, 900]),
    command=st.just("python x.py"),
    gpu=st.sampled_from(["", "", "0", "1"]),
    on_pressure=st.sampled_from(OnPressure),
    grace_ns=st.sampled_from([0, 0, 7]),
)
devices = st.integers(0, 1)
