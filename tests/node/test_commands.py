"""`pause`, `resume` and `set` change the node and report each failure in one sentence."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from cotenant import cli
from cotenant.cli.flags import overlay
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GatePolicy, GateRules
from cotenant.node.client.connection import Connection
from cotenant.node.client.membership import _flags_of
from cotenant.node.config.control import ControlConfig
from cotenant.node.config.file import Config, validate
from cotenant.node.model.control import ControlLimits
from cotenant.node.model.event import NodeSettings
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from tests.support.node_in_process import BOUND_S, InProcessNode, join

pytestmark = pytest.mark.live

NEITHER = "give NAME and at least one of --priority, --slo, --share, --limit and --memory"


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessNode]:
    """A node with an online tenant `web` and offline ones `a` and `b` on one GPU."""
    config = tmp_path_factory.mktemp("config") / "config.toml"
    config.touch()
    monkeypatch.setenv("COTENANT_CONFIG", str(config))
    with InProcessNode(gpus=(Gpu("v100", 1 << 34),)) as in_process_node, ExitStack() as stack:
        for kind, name in ((Kind.ONLINE, "web"), (Kind.OFFLINE, "a"), (Kind.OFFLINE, "b")):
            join(stack.enter_context(Connection(in_process_node.path, BOUND_S)), TenantSpec(kind, 5, name))
        yield in_process_node


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_command(node: InProcessNode, capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main([*words, "--runtime-dir", str(node.home), "--state-dir", str(node.home)])
        received = capsys.readouterr()
        return code, received.out, received.err

    return run


def paused(node: InProcessNode) -> list[str]:
    return [view.tenant.name for view in node.honest().tenants if view.tenant.paused]


def test_several_values_are_set_at_once_and_the_message_names_them(node: InProcessNode, run_command: Say) -> None:
    words = ("set", "a", "--priority", "6", "--share", "10%", "--memory", "1GiB")
    assert run_command(*words) == (0, "a has priority 6 and a share of 10% and memory 1GiB\n", "")
    grant = next(view.tenant.grant for view in node.honest().tenants if view.tenant.name == "a")
    assert (grant.priority, grant.share_ppm, grant.memory_bytes) == (6, 100_000, 1 << 30)
    assert run_command("set", "b", "--memory", "2GiB")[0] == 0
    code, _, error = run_command("set", "a", "--memory", "16GiB", "--priority", "3")
    assert (code, "the node refused" in error) == (75, True), "the other tenant may leave"
    code, _, error = run_command("set", "a", "--memory", "32GiB", "--priority", "3")
    assert (code, "its GPU has 16GiB; choose less" in error) == (2, True)
    grant = next(view.tenant.grant for view in node.honest().tenants if view.tenant.name == "a")
    assert (grant.priority, grant.memory_bytes) == (6, 1 << 30)


def test_tenants_are_paused_and_resumed_by_name_or_all_offline(node: InProcessNode, run_command: Say) -> None:
    assert run_command("pause", "a", "web") == (0, "paused: a, web\n", "")
    assert paused(node) == ["web", "a"]
    assert json.loads(run_command("pause", "--all-offline", "--json")[1]) == {"tenants": ["a", "b"], "paused": True}
    assert paused(node) == ["web", "a", "b"]
    assert run_command("resume", "--all-offline") == (0, "resumed: a, b\n", "")
    assert run_command("resume", "a", "web", "a")[0] == 0
    assert paused(node) == []


def test_priority_and_rules_are_set_and_reported(node: InProcessNode, run_command: Say) -> None:
    assert run_command("set", "a", "--priority", "0") == (0, "a has priority 0\n", "")
    assert run_command("set", "--gate", "strict", "--delay", "1%")[1].startswith(
        "rules in force: strict, bound 250us, delay 1%"
    )
    answer = json.loads(run_command("set", "--bound", "200us", "--json")[1])
    assert answer == {
        "tenants": [],
        "priority": None,
        "slo_ns": None,
        "share_ppm": None,
        "limit": None,
        "memory_bytes": None,
        "rules": {
            "policy": "strict", "bound_ns": 200_000, "delay_ppm": 10_000,
            "patience_ns": 2_000_000, "switch_ns": 10_000, "spin_ppm": 350_000, "sm_ppm": None,
            "ignored_priority_ppm": 0,
        },
    }  # fmt: skip
    rules = node.gates.read(0)
    assert rules is not None
    assert (rules.policy, rules.bound_ns, [entry.priority for entry in rules.entries]) == (
        GatePolicy.STRICT,
        200_000,
        [5, 0, 5],
    )


@pytest.mark.parametrize(
    "words, answer",
    [
        (["pause"], "name the tenants"),
        (["pause", "a", "--all-offline"], "name the tenants"),
        (["pause", "a", "nobody"], "no tenant has the name 'nobody'"),
        (["resume", "x y"], "is not a valid tenant name"),
        (["set"], NEITHER),
        (["set", "a"], NEITHER),
        (["set", "--priority", "3"], NEITHER),
        (
            ["set", "a", "--priority", "3", "--gate", "open"],
            NEITHER,
        ),
        (["set", "a", "--share", "150%"], "--share = '150%'"),
        (["set", "--slo", "5ms"], NEITHER),
        (["set", "web", "--slo", "20"], "--slo = '20': write a number and a unit"),
        (["set", "web", "--slo", "off"], "--slo = 'off': write a number and a unit"),
        (
            ["set", "a", "--slo", "20ms"],
            "--slo = '20ms': 'a' is an offline tenant, which has no latency objective; run it with",
        ),
        (["set", "nobody", "--slo", "20ms"], "no tenant has the name 'nobody'"),
        (["set", "a", "--limit", "hard"], "--limit = 'hard'"),
        (
            ["set", "a", "--limit", "static"],
            "--limit = 'static': 'a' has no share that a static limit could apply to; add --share",
        ),
        (["set", "a", "--share", "0%", "--limit", "static"], "--limit = 'static': 'a' has no share"),
        (["set", "a", "--priority", "12"], "--priority = '12'"),
        (["set", "a", "--priority", "high"], "--priority = 'high'"),
        (["set", "nobody", "--priority", "3"], "no tenant has the name 'nobody'"),
        (["set", "--gate", "ajar"], "--gate = 'ajar': choose fill, strict or open"),
        (["set", "--bound", "5"], "--bound = '5'"),
        (["set", "--delay", "200%"], "--delay = '200%'"),
    ],
)
def test_invalid_command_is_reported_and_changes_nothing(
    node: InProcessNode, run_command: Say, words: list[str], answer: str
) -> None:
    before = node.gates.read(0)
    code, out, err = run_command(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert answer in err
    assert node.gates.read(0) == before


def test_objective_is_set_and_removed(node: InProcessNode, run_command: Say) -> None:
    def slos() -> list[int]:
        grant = [node.pages.read(slot) for slot in range(3)]
        assert [one and one.slo_ns for one in grant] == [view.tenant.spec.slo_ns for view in node.honest().tenants]
        return [view.tenant.grant.slo_ns for view in node.honest().tenants]

    assert run_command("set", "web", "--slo", "20ms") == (0, "web has latency objective 20ms\n", "")
    assert slos() == [20_000_000, 0, 0]
    answer = json.loads(run_command("set", "web", "--slo", "5ms", "--json")[1])
    assert (answer["tenants"], answer["slo_ns"], answer["share_ppm"]) == (["web"], 5_000_000, None)
    assert slos() == [5_000_000, 0, 0]
    assert run_command("set", "web", "--slo", "0s") == (0, "web has no latency objective\n", "")
    assert run_command("set", "a", "--slo", "0s") == (0, "a has no latency objective\n", "")
    assert slos() == [0, 0, 0]


def test_static_tenant_keeps_a_share(run_command: Say) -> None:
    assert run_command("set", "a", "--share", "20%", "--limit", "static")[0] == 0
    code, _, err = run_command("set", "a", "--share", "0%")
    assert (code, "--limit = 'static': 'a' has no share that a static limit could apply to" in err) == (2, True)
    assert run_command("set", "a", "--share", "0%", "--limit", "conserving")[0] == 0


def test_node_started_by_run_keeps_the_settings_of_its_predecessor() -> None:
    rules = GateRules(GatePolicy.STRICT, 123_456, 12_345, 7, 10_000, 999_999)
    control = ControlLimits(70_000_000, "aimd", 950_000, 50_000, 300_000, 900_000, mps_share=True)
    promised = (7, 10**10, 0, "predict", "overcommit", (Gpu("a", 1 << 30), Gpu("b", 3 << 30)), rules)
    settings = NodeSettings(*promised, control=control, is_mps=True, refuse_unmet=True, uses_calibration=True)
    words = iter(_flags_of(settings))
    given = [(word.removeprefix("--").replace("-", "_"), next(words)) for word in words]
    steers = {field.name for field in msgspec.structs.fields(ControlConfig)}
    flags = {("control" if name in steers else "node", name): value for name, value in given if name != "gpu"}
    config = overlay(Config(), flags, [value for name, value in given if name == "gpu"])
    validate(config)
    found = config.node.settings(tuple(gpu.gpu() for gpu in config.gpu), control=config.control.limits())
    assert found == settings
