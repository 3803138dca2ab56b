"""A tenant that gets a share among equals while it runs continues to launch."""

from __future__ import annotations

from cotenant.gate.launch_estimate import LaunchEstimate
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import device_memory, write_tenant_table

US = 1000


def test_only_admitted_launches_need_completion_events() -> None:
    file = device_memory()
    equals = (GateEntry(0, 1, 1, True), GateEntry(1, 1, 1, True))
    write_tenant_table(file, GateRules(entries=equals))
    passage = TenantGate(file, (0, 1), [LaunchEstimate(400 * US, 400 * US)], [0])
    now_ns = 10**9
    for _ in range(3):  # on the device when the share comes
        assert passage.ask(0, now_ns, now_ns) == now_ns
        assert not passage.confirms
        passage.submitted(now_ns)
        now_ns += US
    shared = tuple(GateEntry(entry.slot, 1, 1, True, limit_ppm=500_000) for entry in equals)
    write_tenant_table(file, GateRules(entries=shared))
    for _ in range(50):
        now_ns += 400 * US
        assert passage.ask(0, now_ns, now_ns) == now_ns
        assert passage.confirms
        passage.submitted(now_ns)
        now_ns += 400 * US
        passage.ended(0, 400 * US, now_ns)
    write_tenant_table(file, GateRules(entries=equals))
    assert passage.ask(0, now_ns + US, now_ns + US) == now_ns + US
    assert not passage.confirms
