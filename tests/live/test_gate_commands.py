"""Do `pause`, `resume` and `set` do what they say, and say in one sentence what they cannot?"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from cotenant import cli
from cotenant.apps.membership import _flags_of
from cotenant.domain.control import ControlLimits
from cotenant.domain.event import NodeSettings
from cotenant.domain.gate import GatePolicy, GateRules
from cotenant.domain.gpu import Gpu
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format.config import Config, validate
from cotenant.format.config_control import ControlConfig
from cotenant.format.flags import overlay
from cotenant.live.client import Connection
from tests.live.indoors import BOUND_S, Indoors, join

NEITHER = "say NAME and --priority, --slo, --share or --limit, or rules without a NAME"


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Indoors]:
    """A node with an online tenant `web` and offline ones `a` and `b` on one GPU."""
    config = tmp_path_factory.mktemp("config") / "config.toml"
    config.touch()
    monkeypatch.setenv("COTENANT_CONFIG", str(config))
    with Indoors(gpus=(Gpu("v100", 1 << 34),)) as made, ExitStack() as stack:
        for kind, name in ((Kind.ONLINE, "web"), (Kind.OFFLINE, "a"), (Kind.OFFLINE, "b")):
            join(stack.enter_context(Connection(made.path, BOUND_S)), TenantSpec(kind, 5, name))
        yield made


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(node: Indoors, capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main([*words, "--runtime", str(node.home), "--state", str(node.home)])
        heard = capsys.readouterr()
        return code, heard.out, heard.err

    return run


def paused(node: Indoors) -> list[str]:
    return [view.tenant.name for view in node.honest().tenants if view.tenant.paused]


def test_tenants_are_paused_and_go_on_by_name_or_all_offline_ones(node: Indoors, say: Say) -> None:
    assert say("pause", "a", "web") == (0, "paused: a, web\n", "")
    assert paused(node) == ["web", "a"]
    assert json.loads(say("pause", "--all-offline", "--json")[1]) == {"tenants": ["a", "b"], "paused": True}
    assert paused(node) == ["web", "a", "b"]
    assert say("resume", "--all-offline") == (0, "resumed: a, b\n", "")
    assert say("resume", "a", "web", "a")[0] == 0
    assert paused(node) == []


def test_a_priority_and_rules_are_set_and_said(node: Indoors, say: Say) -> None:
    assert say("set", "a", "--priority", "0") == (0, "a has priority 0\n", "")
    assert say("set", "--gate", "strict", "--delay", "1%")[1].startswith(
        "rules in force: strict, bound 500us, delay 1%"
    )
    told = json.loads(say("set", "--bound", "200us", "--json")[1])
    assert told == {
        "tenants": [],
        "priority": None,
        "slo_ns": None,
        "share_ppm": None,
        "limit": None,
        "rules": {
            "policy": "strict", "bound_ns": 200_000, "delay_ppm": 10_000,
            "patience_ns": 2_000_000, "switch_ns": 10_000, "spin_ppm": 350_000,
        },
    }  # fmt: skip
    roster = node.gates.read(0)
    assert roster is not None
    assert (roster.policy, roster.bound_ns, [seat.priority for seat in roster.seats]) == (
        GatePolicy.STRICT,
        200_000,
        [5, 0, 5],
    )


@pytest.mark.parametrize(
    "words, told",
    [
        (["pause"], "say which tenants"),
        (["pause", "a", "--all-offline"], "say which tenants"),
        (["pause", "a", "nobody"], "no tenant is called 'nobody'"),
        (["resume", "x y"], "no tenant can be called that"),
        (["set"], NEITHER),
        (["set", "a"], NEITHER),
        (["set", "--priority", "3"], NEITHER),
        (
            ["set", "a", "--priority", "3", "--gate", "open"],
            NEITHER,
        ),
        (["set", "a", "--priority", "3", "--share", "5%"], "set priority, objective and share one after the other"),
        (["set", "a", "--share", "150%"], "--share = '150%'"),
        (["set", "web", "--slo", "5ms", "--share", "5%"], "--slo = '5ms': set priority, objective and share one"),
        (["set", "web", "--slo", "5ms", "--priority", "5"], "--priority = 5: set priority, objective and share one"),
        (["set", "--slo", "5ms"], NEITHER),
        (["set", "web", "--slo", "20"], "--slo = '20': write a number and a unit"),
        (["set", "web", "--slo", "off"], "--slo = 'off': write a number and a unit"),
        (["set", "a", "--slo", "20ms"], "--slo = '20ms': 'a' is offline and has no latency objective; run it with"),
        (["set", "nobody", "--slo", "20ms"], "no tenant is called 'nobody'"),
        (["set", "a", "--limit", "hard"], "--limit = 'hard'"),
        (["set", "a", "--limit", "static"], "--limit = 'static': 'a' would have no share to be held to; add --share"),
        (["set", "a", "--share", "0%", "--limit", "static"], "--limit = 'static': 'a' would have no share"),
        (["set", "a", "--priority", "12"], "--priority = '12'"),
        (["set", "a", "--priority", "high"], "--priority = 'high'"),
        (["set", "nobody", "--priority", "3"], "no tenant is called 'nobody'"),
        (["set", "--gate", "ajar"], "--gate = 'ajar': choose fill, strict or open"),
        (["set", "--bound", "5"], "--bound = '5'"),
        (["set", "--delay", "200%"], "--delay = '200%'"),
    ],
)
def test_a_mistake_gets_one_sentence_and_changes_nothing(node: Indoors, say: Say, words: list[str], told: str) -> None:
    before = node.gates.read(0)
    code, out, err = say(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert node.gates.read(0) == before


def test_an_objective_is_set_and_taken_away(node: Indoors, say: Say) -> None:
    def slos() -> list[int]:
        terms = [node.pages.read(slot) for slot in range(3)]
        assert [one and one.slo_ns for one in terms] == [view.tenant.spec.slo_ns for view in node.honest().tenants]
        return [view.tenant.terms.slo_ns for view in node.honest().tenants]

    assert say("set", "web", "--slo", "20ms") == (0, "web has an objective of 20ms\n", "")
    assert slos() == [20_000_000, 0, 0]
    told = json.loads(say("set", "web", "--slo", "5ms", "--json")[1])
    assert (told["tenants"], told["slo_ns"], told["share_ppm"]) == (["web"], 5_000_000, None)
    assert slos() == [5_000_000, 0, 0]
    assert say("set", "web", "--slo", "0s") == (0, "web has no objective\n", "")
    assert say("set", "a", "--slo", "0s") == (0, "a has no objective\n", "")
    assert slos() == [0, 0, 0]


def test_who_is_held_to_its_share_keeps_one(say: Say) -> None:
    assert say("set", "a", "--share", "20%", "--limit", "static")[0] == 0
    code, _, err = say("set", "a", "--share", "0%")
    assert (code, "--limit = 'static': 'a' would have no share to be held to" in err) == (2, True)
    assert say("set", "a", "--share", "0%", "--limit", "conserving")[0] == 0


def test_a_node_brought_back_by_run_is_set_up_as_the_one_before() -> None:
    rules = GateRules(GatePolicy.STRICT, 123_456, 12_345, 7, 10_000, 999_999)
    control = ControlLimits(70_000_000, "aimd", 950_000, 50_000, 300_000, 900_000, mps_share=True)
    promised = (7, 10**10, 0, "predict", "overcommit", (Gpu("a", 1 << 30), Gpu("b", 3 << 30)), rules)
    settings = NodeSettings(*promised, control=control, is_mps=True, refuse_unmet=True)
    words = iter(_flags_of(settings))
    given = [(word.removeprefix("--").replace("-", "_"), next(words)) for word in words]
    steers = {field.name for field in msgspec.structs.fields(ControlConfig)}
    flags = {("control" if name in steers else "node", name): value for name, value in given if name != "gpu"}
    config = overlay(Config(), flags, [value for name, value in given if name == "gpu"])
    validate(config)
    found = config.node.settings(tuple(gpu.gpu() for gpu in config.gpu), control=config.control.limits())
    assert found == settings
