"""`cotenant ps` shows the online share of every device and its division among peers."""

import pytest
from rich.console import Console

from cotenant.cli.render.tenants import show_tenants
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateRules
from cotenant.node import wire
from cotenant.node.model.control import OnlineShareSetpoint
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import Tenant, TenantSpec, TenantView
from cotenant.units.histogram import Histogram

pytestmark = pytest.mark.live


def test_online_shares_are_listed_by_device_with_the_shares_of_peers() -> None:
    spec = TenantSpec(Kind.ONLINE, 2, "web", slo_ns=10**6)
    tenants = [
        TenantView(Tenant(name, Grant(slot, 1, Kind.ONLINE, 2, 10**6, 0, 0, 0), spec, 10, 0, 0), True)
        for slot, name in enumerate(("web", "api"))
    ]
    setpoints = [OnlineShareSetpoint(1, 500_000), OnlineShareSetpoint(0, 980_000, ((0, 600_000), (1, 400_000)))]
    gpus = [Gpu("a", 1 << 30), Gpu("b", 1 << 30)]
    tenant_list = wire.TenantList(
        wire.VERSION, "1", 9, tenants, [], 10, 1, 64, gpus, Histogram(), GateRules(), [], setpoints
    )
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as captured:
        show_tenants(console, tenant_list, {}, with_departed=False)
    assert [line for line in captured.get().splitlines() if line.startswith("GPU ")] == [
        "GPU 0: online share 98% while online tenants are active: web 60%, api 40%",
        "GPU 1: online share 50% while online tenants are active",
    ]
