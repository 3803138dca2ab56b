"""Tests of simulation of kernel streams."""

import functools
import itertools
import json
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.simulate.kernels import Policy, RunSettings, Tenant, plan_oracle, play, play_alone
from cotenant.simulate.kernels_format import decode_kernels, is_of_kernels
from cotenant.simulate.kernels_scenario import simulate_kernels
from cotenant.simulate.oracle import OfflineKernels, plan_of
from cotenant.softgpu.sim.device import Device, Kernel, ScriptClient, Step, preset
from cotenant.softgpu.sim.host import Client, Costs, OpenGate
from cotenant.softgpu.sim.kernels import DeviceSimulation
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.launch_files import script_text
from cotenant.workload.launch_script import read_script
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Arrival, Launch, Workload
from cotenant_lab.bench.goodput.models import make_models
from tests.support.onnx_models import write_model
from tests.support.tools import ROOT, run, run_or_fail

V100 = preset("v100")
FREE = Costs(call_ns=0, sync_ns=0, query_ns=0, poll_ns=1, wake_ns=0, wake_spread_ns=0, jitter_ppm=0)
US = 1000
OPEN: Policy = "open-mps"
STRICT: Policy = "strict"
FILL: Policy = "fill"
COTENANT = (sys.executable, "-m", "cotenant")

lengths = st.integers(1, 60).map(lambda us: us * US)


@st.composite
def loads(draw: st.DrawFn, arrival: Arrival = BACK_TO_BACK, *, whole_device: bool = False) -> Workload:
    launches = tuple(
        Launch(
            KernelIdentity(
                f"k{draw(st.integers(0, 3))}", (80 if whole_device else draw(st.integers(1, 300)), 1, 1), (1024, 1, 1)
            ),
            draw(lengths),
            draw(st.integers(0, 80)) * US,
            registers=64,
        )
        for _ in range(draw(st.integers(1, 6)))
    )
    return Workload("made up", launches, arrival, draw(st.integers(1, 8)), draw(st.booleans()))


def kernel_of(launch: Launch) -> Kernel:
    waves = -(-launch.kernel.blocks // V100.sm_count)
    return Kernel(
        blocks=launch.kernel.blocks,
        block_ns=max(round(launch.device_ns / waves), 1),
        threads_per_block=1024,
        registers_per_thread=64,
        blocks_per_sm=1,
    )


class LimitingGate(OpenGate):
    """Admits every launch at once, with the limit of its step."""

    def __init__(self, limits_ppm: list[int]) -> None:
        """Repeat these limits."""
        self.limits_ppm = limits_ppm

    def ask(self, step: int, since_ns: int, now_ns: int) -> int:
        """Admit the launch."""
        self.sm_ppm = self.limits_ppm[step % len(self.limits_ppm)]
        return now_ns


@given(
    st.lists(loads(), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.sampled_from([0, 1, 130_000, 500_000, 1_000_000]), min_size=1, max_size=3),
)
@settings(max_examples=40)
def test_hosts_with_a_gate_that_limits_match_the_batch_driver(
    programs: list[Workload], share_group: bool, limits_ppm: list[int]
) -> None:
    """Two drivers of the same model, one in C and one here: every request ends at the same instant."""
    groups = [0 if share_group else index for index in range(len(programs))]
    clients = [Client(load, group) for load, group in zip(programs, groups, strict=True)]
    simulation = DeviceSimulation(V100, clients, [LimitingGate(limits_ppm) for _ in programs], FREE, 0)
    played = simulation.play()
    caps = [0 if not ppm else max(80 * ppm // 1_000_000, 1) for ppm in limits_ppm]
    kernels = [
        msgspec.structs.replace(kernel_of(launch), sm_cap=caps[0 if load.graph else step % len(caps)])
        for load in programs
        for step, launch in enumerate(load.launches)
    ]
    scripts, first = [], 0
    for load, group in zip(programs, groups, strict=True):
        waits = [0, *(0 if load.graph else launch.interval_ns for launch in load.launches)]
        steps = [Step(wait_ns, first + index) for index, wait_ns in enumerate(waits[:-1])]
        steps.append(Step(waits[-1], None, sync=True))
        scripts.append(ScriptClient(steps=tuple(steps), repeats=load.requests, group_label=group))
        first += len(load.launches)
    results = Device(V100).run(kernels, scripts)
    ends = list(itertools.accumulate(played.clients[0].latencies_ns))
    assert ends == list(results[0].repeat_ends_ns)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=5),
    st.lists(st.integers(1, 25), min_size=1, max_size=4),
    st.integers(0, 30),
)
def test_oracle_plan_is_at_least_the_best_of_an_exhaustive_search(
    gaps: list[tuple[int, int]], durations: list[int], allowance: int
) -> None:
    """Compare with a search over every number of kernels in every gap."""
    at, gap_spans = 0, []
    for pause, length in gaps:
        at += pause + 1
        gap_spans.append((at, at + length))
        at += length
    no_poll = msgspec.structs.replace(FREE, poll_ns=0)
    offline = OfflineKernels(durations_ns=tuple(durations), intervals_ns=(0,) * len(durations))
    plan = plan_of(tuple(gap_spans), offline, allowance, 0, no_poll)
    best = _brute_force([length for _, length in gaps], durations, allowance)
    # The oracle may spend the rest of its allowance at any instant, so its plan is never below.
    assert plan.done_ns >= best
    free_plan = plan_of(tuple(gap_spans), offline, 0, 0, no_poll)
    assert free_plan.done_ns == _brute_force([length for _, length in gaps], durations, 0)
    assert free_plan.delay_ns == 0
    assert plan.done_ns <= sum(length for _, length in gaps) + allowance


def _brute_force(gap_lengths: list[int], durations: list[int], allowance: int) -> int:
    """Return the most kernel time of any number of kernels in each gap; cached, because the search is exponential."""

    @functools.cache
    def most(gap: int, kernel: int, remaining: int) -> int:
        if gap == len(gap_lengths):
            return 0
        best = used = count = 0
        while (over := max(used - gap_lengths[gap], 0) if count else 0) <= remaining:
            best = max(best, used + most(gap + 1, (kernel + count) % len(durations), remaining - over))
            used += durations[(kernel + count) % len(durations)]
            count += 1
        return best

    return most(0, 0, allowance)


@given(loads(whole_device=True), loads(TRAINING, whole_device=True), st.sampled_from([STRICT, FILL]), st.integers(0, 3))
@settings(max_examples=25)
def test_gate_does_not_exceed_the_oracle(online: Workload, offline: Workload, policy: Policy, seed: int) -> None:
    """Kernels that fill the device and one group: offline time done is time that the online tenant left, or lost."""
    # A host that is slower than its device can launch while the other runs, which the oracle's rough host cannot.
    assume(sum(launch.interval_ns for launch in offline.launches) <= offline.device_ns)
    setting = RunSettings(device=V100, seed=seed)
    alone = play_alone(online, setting)
    shared = play(policy, [Tenant(load=online, priority=1), Tenant(load=offline, priority=7)], setting).played
    spent_ns = max(shared.clients[0].delayed_ns, shared.co_running_ns)
    plan = plan_oracle(alone, offline, setting, spent_ns, sliced=False)
    longest_ns = max(offline.device_ns if offline.graph else max(launch.device_ns for launch in offline.launches), 1)
    # The window begins and ends within a kernel, a gap that grew by a delay is longer than it was alone, and what was
    # submitted ahead begins a gap without the poll that the oracle pays for.
    stretched_ns = max(shared.wall_ns - alone.wall_ns, 0) + setting.costs.poll_ns * len(alone.gaps_ns)
    assert shared.clients[1].done_ns <= plan.done_ns + 2 * longest_ns + stretched_ns
    assert shared.clients[0].requests == alone.clients[0].requests


@given(loads(whole_device=True), loads(TRAINING, whole_device=True))
@settings(max_examples=15)
def test_strict_costs_the_online_tenant_no_more_than_open_sharing(online: Workload, offline: Workload) -> None:
    setting = RunSettings(device=V100)
    tenants = [Tenant(load=online, priority=1), Tenant(load=offline, priority=7)]
    delays = [play(policy, tenants, setting).played.clients[0].delayed_ns for policy in (OPEN, STRICT)]
    assert delays[1] <= delays[0] + 2 * offline.device_ns


SCENARIO = """
seed = 4
duration = "4ms"
policies = ["open-slice", "open-mps", "strict", "fill", "oracle"]
[device]
preset = "v100"
[[tenant]]
name = "service"
kind = "online"
priority = 1
[tenant.generator]
kernels = 10
kernel = "20us"
interval = "60us"
[[tenant]]
name = "training"
kind = "offline"
priority = 7
arrival = "training"
[tenant.generator]
kernels = 30
kernel = "15us"
interval = "4us"
"""


@pytest.mark.parametrize("percent", [20, 50, 80])
def test_tenant_gets_its_static_share_next_to_a_tenant_of_equal_priority(percent: int) -> None:
    """A tenant with a static share gets it next to a tenant of equal priority without a limit."""
    kernel = KernelIdentity("k", (80, 1, 1), (1024, 1, 1))
    owner = Workload("owner", (Launch(kernel, 200 * US, 2 * US, registers=64),) * 8, BACK_TO_BACK, 200)
    other = Workload("other", (Launch(kernel, 300 * US, 2 * US, registers=64),) * 8, TRAINING, 1)
    setting = RunSettings(device=V100, costs=FREE, warm=0)
    limited = Tenant(load=owner, priority=7, limit_ppm=percent * 10_000, static=True)
    played = play("fill-slice", [limited, Tenant(load=other, priority=7)], setting).played
    took_ns = sum(played.clients[0].latencies_ns)
    assert abs(100 * 200 * 8 * 200 * US / took_ns - percent) < 3


def test_kernel_scenario_is_a_function_of_its_seed(tmp_path: Path) -> None:
    file = tmp_path / "kernels.toml"
    file.write_text(SCENARIO)
    outcomes = [
        run_or_fail([*COTENANT, "simulate", file, "--json"], tmp_path, {"PYTHONHASHSEED": seed}) for seed in ("1", "2")
    ]
    assert outcomes[0] == outcomes[1]
    played = json.loads(outcomes[0][outcomes[0].index("{") :])
    assert [row["policy"] for row in played["policies"]] == ["open-slice", "open-mps", "strict", "fill", "oracle"]
    other = simulate_kernels(decode_kernels(SCENARIO.replace("seed = 4", "seed = 5"), "x"), file, lambda _: None)
    assert other.policies[3].online_ms != played["policies"][3]["online_ms"]


BAD = {
    "policies[0]": SCENARIO.replace('"open-slice"', '"closed"'),
    "tenant[0].colour": SCENARIO.replace("priority = 1\n", 'priority = 1\ncolour = "red"\n'),
    "tenant[1].period": SCENARIO.replace('arrival = "training"', 'arrival = "poisson"'),
    "tenant[1].priority": SCENARIO.replace("priority = 7", "priority = 0"),
    "tenant[0].file": SCENARIO.replace("priority = 1\n", 'priority = 1\nfile = "a.csv"\n'),
    "tenant[0].arrival": SCENARIO.replace("priority = 1\n", 'priority = 1\narrival = "training"\n'),
    "tenant[1].generator.kernel": SCENARIO.replace('kernel = "15us"', 'kernel = "15"'),
}


@pytest.mark.parametrize("field", BAD)
def test_invalid_kernel_scenario_is_reported_with_its_field_and_line(field: str) -> None:
    assert is_of_kernels(BAD[field])
    with pytest.raises(ConfigError) as caught:
        decode_kernels(BAD[field], "s.toml")
    assert field in str(caught.value)
    assert "s.toml:" in str(caught.value)


def test_unknown_device_preset_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "kernels.toml"
    file.write_text(SCENARIO.replace('"v100"', '"v101"'))
    refused = run([*COTENANT, "simulate", file], tmp_path)
    assert refused.returncode == 2
    assert "device.preset = 'v101'" in refused.stdout


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("kernels-*.toml")), ids=lambda path: path.stem)
def test_kernel_scenarios_of_the_repository_are_valid(file: Path) -> None:
    assert is_of_kernels(file.read_text())
    assert len(decode_kernels(file.read_text(), str(file)).tenant) >= 2


@given(loads())
def test_launch_script_round_trips(load: Workload) -> None:
    written = script_text("made up", load.launches)
    assert script_text("made up", read_script(written.encode(), "script")) == written


MODEL_SCENARIO = """
seed = 4
duration = "20ms"
policies = ["open-mps", "fill"]
[device]
preset = "a100"
[[tenant]]
name = "service"
kind = "online"
priority = 1
file = "resnet.onnx"
requests = 3
[[tenant]]
name = "training"
kind = "offline"
priority = 7
arrival = "training"
file = "mobilenet.onnx"
batch = 8
train = true
"""


def test_models_are_tenants_of_a_scenario(tmp_path: Path) -> None:
    make_models(tmp_path, small=True)
    file = tmp_path / "models.toml"
    file.write_text(MODEL_SCENARIO)
    outcome = simulate_kernels(decode_kernels(MODEL_SCENARIO, str(file)), file, lambda _: None)
    assert outcome.device.startswith("NVIDIA A100")
    assert outcome.online == "service"
    found = {policy.policy: policy for policy in outcome.policies}
    assert set(found) == {"open-mps", "fill"}
    assert all(policy.offline_kernel_ms > 0 for policy in outcome.policies)
    assert all(0 < policy.latency_p50_ms <= policy.latency_p99_ms <= policy.online_ms for policy in outcome.policies)
    assert all(policy.online_ms >= outcome.online_alone_ms for policy in outcome.policies)
    larger = MODEL_SCENARIO.replace("requests = 3", "requests = 3\nbatch = 64")
    slower = simulate_kernels(decode_kernels(larger, str(file)), file, lambda _: None)
    assert slower.online_alone_ms > outcome.online_alone_ms, "the batch size of the model counts"
    shown = run_or_fail([*COTENANT, "simulate", str(file), "--json"], tmp_path)
    assert json.loads(shown[shown.index("{") :])["online_alone_ms"] == pytest.approx(outcome.online_alone_ms)


def test_open_sizes_of_a_model_are_given_in_the_scenario_and_unknown_operators_are_named(tmp_path: Path) -> None:
    write_model(tmp_path / "resnet.onnx", unknown=True, side="sequence")
    write_model(tmp_path / "mobilenet.onnx")
    file = tmp_path / "models.toml"
    with pytest.raises(ConfigError, match=r"tenant\.sizes = 'sequence'.*sizes = \{ NAME = 128 \}"):
        simulate_kernels(decode_kernels(MODEL_SCENARIO, str(file)), file, lambda _: None)
    sized = MODEL_SCENARIO.replace("requests = 3", "requests = 3\nsizes = { sequence = 256 }")
    said: list[str] = []
    outcome = simulate_kernels(decode_kernels(sized, str(file)), file, said.append)
    assert outcome.online_alone_ms > 0
    assert any(text.startswith("service: 1 x VendorThing is not supported") for text in said)


@pytest.mark.parametrize(
    "before, after, texts",
    [
        ("resnet.onnx", "none.onnx", ("tenant.file", "none.onnx")),
        (
            'file = "resnet.onnx"',
            'file = "a.trace"\nsizes = { x = 3 }',
            ("batch, sizes, mode and train are for models",),
        ),
        ('preset = "a100"', 'preset = "none"', ("device", "none")),
        ("train = true", 'mode = "quick"', ("mode",)),
    ],
)
def test_a_bad_model_tenant_is_refused_with_the_field(
    tmp_path: Path, before: str, after: str, texts: tuple[str, ...]
) -> None:
    make_models(tmp_path, small=True)
    file = tmp_path / "models.toml"
    file.write_text(MODEL_SCENARIO.replace(before, after))
    done = run([*COTENANT, "simulate", str(file)], tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout
    assert all(text in done.stdout for text in texts), done.stdout
