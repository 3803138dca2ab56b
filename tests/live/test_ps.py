"""Does `cotenant ps` say of every device what its online tenants keep, and how equals divide it?"""

from rich.console import Console

from cotenant.apps.show import show_tenants
from cotenant.domain.control import Dial
from cotenant.domain.gate import GateRules
from cotenant.domain.gpu import Gpu
from cotenant.domain.histogram import Histogram
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, TenantView, Terms
from cotenant.format import wire


def test_what_online_keeps_is_said_device_by_device_with_the_names_of_those_who_divide_it() -> None:
    spec = TenantSpec(Kind.ONLINE, 2, "web", slo_ns=10**6)
    here = [
        TenantView(Tenant(name, Terms(slot, 1, Kind.ONLINE, 2, 10**6, 0, 0, 0), spec, 10, 0, 0), True)
        for slot, name in enumerate(("web", "api"))
    ]
    dials = [Dial(1, 500_000), Dial(0, 980_000, ((0, 600_000), (1, 400_000)))]
    gpus = [Gpu("a", 1 << 30), Gpu("b", 1 << 30)]
    roll = wire.Tenants(wire.VERSION, "1", 9, here, [], 10, 1, 64, gpus, Histogram(), GateRules(), [], dials)
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as captured:
        show_tenants(console, roll, {}, everybody=False)
    assert [line for line in captured.get().splitlines() if line.startswith("GPU ")] == [
        "GPU 0: online keeps 98% while it is active, divided among web 60% and api 40%",
        "GPU 1: online keeps 50% while it is active",
    ]
