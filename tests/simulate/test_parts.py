"""Kernels launched in parts: the parts add up to the grid, run in order, and are no longer than the gate's bound."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate.rules import GateRules
from cotenant.gate.tenant_gate import TenantGate
from cotenant.gate.tenant_table import device_memory, write_tenant_table
from cotenant.simulate.kernels import Policy, RunSettings, Tenant, play, works_of
from cotenant.softgpu.sim.device import preset
from cotenant.softgpu.sim.host import Client, Costs, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.kernel_table import LIST_COLUMNS, TIMELINE_COLUMNS, read_kernels
from cotenant.workload.load import TRAINING, Launch, Workload, launches_of, periodic
from tests.gate.test_bounds import entries

V100 = preset("v100")
FREE = Costs(call_ns=0, sync_ns=0, query_ns=0, poll_ns=1, wake_ns=0, wake_spread_ns=0, jitter_ppm=0)
US, MS = 1000, 1000 * 1000
DEPTH_NS = 100 * US


def kernel(blocks: int, device_ns: int, function: str = "k", has_ptx: bool | None = None) -> Launch:
    return Launch(
        KernelIdentity(function, (blocks, 1, 1), (1024, 1, 1)), device_ns, 4 * US, registers=64, has_ptx=has_ptx
    )


SERVICE = Workload("service", (kernel(80, 20 * US),) * 10, periodic(2 * MS), 60)


class PartsGate(OpenGate):
    """Admits every launch at once, in parts of so many blocks, and records them."""

    def __init__(self, part: int, blocks: list[int]) -> None:
        """Cut the launches of these grids."""
        self.part, self.blocks = part, blocks
        self.rest: int = 0
        self.parts: list[tuple[int, int]] = []

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit the next part of the step's launch."""
        rest = self.rest or self.blocks[step]
        self.part_blocks = self.part if self.part < rest else 0
        self.rest = rest - self.part if self.part_blocks else 0
        self.parts.append((step, self.part_blocks or rest))
        return now_ns


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 900)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 300),
)
@settings(max_examples=60)
def test_parts_add_up_to_their_launches_and_run_in_order(
    grids: list[tuple[int, int]], requests: int, part: int
) -> None:
    load = Workload("parts", tuple(kernel(blocks, us * US) for blocks, us in grids), TRAINING)
    load = Workload("parts", load.launches, requests=requests)
    gate = PartsGate(part, [blocks for blocks, _ in grids])
    played = DeviceSimulation(V100, [Client(load, 0)], [gate], FREE, 0).play()
    (totals,) = played.clients
    assert totals.kernels == requests * len(grids), "a kernel counts once"
    assert totals.done_ns == requests * load.device_ns
    launched = [(step, blocks) for step, (blocks, _) in enumerate(grids)] * requests
    found: list[tuple[int, int]] = []
    rest = 0
    for step, blocks in gate.parts:
        assert blocks == min(part, rest or grids[step][0])
        if rest:
            found[-1] = (step, found[-1][1] + blocks)
            rest -= blocks
        else:
            found.append((step, blocks))
            rest = grids[step][0] - blocks
    assert found == launched
    whole = DeviceSimulation(V100, [Client(load, 0)], [OpenGate()], FREE, 0).play()
    if part % 80 == 0:  # whole waves: cutting costs nothing where a launch costs nothing
        assert totals.latencies_ns == whole.clients[0].latencies_ns
    else:
        assert sum(totals.latencies_ns) >= sum(whole.clients[0].latencies_ns)


class WatchedGate:
    """The gate's C code, with a record of what passed."""

    def __init__(self, native: _native.Gate) -> None:
        """Record what passes here."""
        self.native = native
        self.passed: list[tuple[int, int, int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.native, name)

    def admit(self, request: tuple[int, ...], since_ns: int, now_ns: int) -> tuple[int, int, int, int, int, int]:
        """Ask, and record expected time, part, remaining blocks and wave."""
        answer = self.native.admit(request, since_ns, now_ns)  # type: ignore[arg-type]
        if answer[0]:
            self.passed.append((answer[3], answer[5], request[9], request[10]))
        return answer


def watched_run(load: Workload, *, is_mps: bool) -> list[tuple[int, int, int, int]]:
    """Run a training next to a service and return what passed the training's gate."""
    memory = device_memory()
    write_tenant_table(memory, GateRules(switch_ns=0, entries=entries(0, 5)))
    gates = [
        TenantGate(memory, (slot, 1), *works_of(each, V100, is_mps=is_mps)) for slot, each in enumerate((SERVICE, load))
    ]
    watched = WatchedGate(gates[1]._gate)
    gates[1]._gate = watched  # type: ignore[assignment]
    clients = [Client(SERVICE, 0 if is_mps else 1, priority=-1), Client(load, 0)]
    DeviceSimulation(V100, clients, gates, Costs(), 1).play()
    return watched.passed


@pytest.mark.parametrize("is_mps", [False, True])
def test_gate_admits_no_part_beyond_its_bound(is_mps: bool) -> None:
    load = Workload("long", (kernel(8000, 3 * MS), kernel(84, 300 * US), kernel(60, 900 * US)), TRAINING)
    passed = watched_run(load, is_mps=is_mps)
    assert len(passed) > 100
    rest = 0
    for expect_ns, part, blocks, wave in passed:
        assert wave == V100.sm_count
        assert rest in {blocks, 0}
        assert expect_ns <= DEPTH_NS or (part or blocks) <= wave
        assert part % wave == 0
        rest = blocks - part if part else 0


def test_kernels_of_libraries_run_whole_unless_their_ptx_is_stated() -> None:
    def parts_of(function: str, has_ptx: bool | None) -> int:
        load = Workload("long", (kernel(8000, 3 * MS, function, has_ptx),), TRAINING)
        return sum(part > 0 for _, part, _, _ in watched_run(load, is_mps=False))

    assert parts_of("elementwise", None) > 0
    assert parts_of("volta_sgemm_128x64_tn", None) == 0
    assert parts_of("volta_sgemm_128x64_tn", True) > 0
    assert parts_of("elementwise", False) == 0


@pytest.mark.parametrize(
    "name, is_library",
    [
        ("volta_sgemm_128x64_nt", True),
        ("Conv", True),
        ("void cudnn::detail::dgrad_engine<float, 512>", True),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688>", True),
        ("void at::native::vectorized_elementwise_kernel<4>", False),
        ("BatchNorm", False),
        ("convert_to_half", False),
        ("softmax_warp_forward", False),
    ],
)
def test_library_kernels_are_known_by_name(name: str, is_library: bool) -> None:
    assert kernel(80, 1000, name).is_sliceable is not is_library


def test_tables_state_of_which_kernels_there_is_ptx() -> None:
    rows = ["conv<1, 2>,1,0,200,1600000,1", "relu,0,0,40,5000,0", "norm,0,0,40,5000,"]
    listed = read_kernels("\n".join([LIST_COLUMNS + ",ptx", *rows]).encode(), "task", "here")
    assert [launch.is_sliceable for launch in launches_of(listed)] == [True, False, True]
    row = "0,kernel,7,0,10,0,0,1,8x1x1,64x1x1,32,0,1,1,1,gemm"
    for column, is_sliceable in (("1", True), ("0", False), ("", False)):
        table = f"{TIMELINE_COLUMNS},ptx\n{row},{column}\n".encode()
        (launch,) = launches_of(read_kernels(table, "task", "here"))
        assert launch.is_sliceable is is_sliceable


@pytest.mark.parametrize("policy", ["fill", "fill-slice"])
def test_service_waits_less_for_parts_than_for_whole_kernels(policy: Policy) -> None:
    device = msgspec.structs.replace(V100, priority_effect_ppm=0)  # otherwise whole kernels give way as well
    setting = RunSettings(device=device, seed=5, rules=GateRules(delay_ppm=400_000))

    def longest_ns(has_ptx: bool) -> int:
        training = Workload("long", (kernel(80 * 40, 4 * MS, has_ptx=has_ptx),), TRAINING)
        tenants = [Tenant(load=SERVICE, priority=1), Tenant(load=training, priority=7)]
        played = play(policy, tenants, setting).played
        assert played.clients[1].kernels > 0
        return max(played.clients[0].latencies_ns)

    assert longest_ns(True) < longest_ns(False)
