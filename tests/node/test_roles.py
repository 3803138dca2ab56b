"""Roles of peers: a request of an ordinary user never changes a tenant of another user, nor the rules."""

import contextlib
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.gate.grant import Kind
from cotenant.gate.rules import Limit
from cotenant.node import wire
from cotenant.node.client.commands import evict, set_paused, set_priority
from cotenant.node.client.connection import Connection, NotPermittedError, issue_token, list_tenants, read_activity
from cotenant.node.config.access import LimitsConfig, OperatorsConfig
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import GateChange
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from tests.support.effort import examples
from tests.support.node_in_process import BOUND_S, SPEC, InProcessNode, join, until

pytestmark = pytest.mark.live

GPUS = (Gpu("a", 16 << 30),)
STRANGER = os.geteuid() + 4711
WEB = TenantSpec(Kind.ONLINE, 1, "web", memory_bytes=1 << 30)

names = st.sampled_from(["web", "job", "x"])
commands = st.one_of(
    st.builds(wire.Pause, st.just(wire.VERSION), st.lists(names, max_size=2), st.booleans(), st.booleans()),
    st.builds(wire.SetPriority, st.just(wire.VERSION), names, st.integers(0, 9)),
    st.builds(wire.SetShare, st.just(wire.VERSION), names, st.none() | st.integers(0, 10**6), st.sampled_from(Limit)),
    st.builds(wire.SetObjective, st.just(wire.VERSION), names, st.integers(0, 10**9)),
    st.builds(wire.SetRules, st.just(wire.VERSION), st.builds(GateChange, delay_ppm=st.integers(0, 10**6))),
    st.builds(wire.EvictTenants, st.just(wire.VERSION), st.lists(names, max_size=2), st.integers(0, 10**9)),
    st.builds(wire.IssueToken, st.just(wire.VERSION), st.just(SPEC), st.integers(0, 10**9)),
)
requests = st.one_of(
    commands,
    st.builds(wire.Join, st.just(wire.VERSION), st.builds(TenantSpec, st.sampled_from(Kind), st.integers(0, 9), names)),
    st.builds(wire.Resume, st.just(wire.VERSION), st.integers(0, 3), st.integers(0, 3)),
    st.builds(wire.Leave, st.just("exit 0")),
    st.builds(wire.Quit, st.integers(0, 10**9)),
    st.builds(wire.SuspendResult, st.booleans(), st.just("")),
    st.builds(wire.RestoreResult, st.booleans(), st.just("")),
    st.builds(wire.RestartReport, st.just("exit 1"), st.integers(0, 9)),
    st.builds(wire.ListTenants, st.just(wire.VERSION)),
    st.builds(wire.GetSnapshot, st.just(wire.VERSION)),
    st.builds(wire.OwnGrant, st.just(wire.VERSION)),
)


def seen_by_operator(node: InProcessNode) -> tuple[Any, ...]:
    answer = node.honest()
    return [view for view in answer.tenants if view.tenant.uid == os.geteuid()], answer.rules


@settings(max_examples=examples(60, 2000), deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_no_request_of_a_stranger_changes_a_tenant_of_another_user(
    conversation: list[wire.Request], on_operator_socket: bool, is_foreign: bool
) -> None:
    """A stranger is another user, or the node's own user in a container."""
    with InProcessNode(gpus=GPUS, slots=8) as node, contextlib.ExitStack() as stack:
        own = stack.enter_context(Connection(node.path, BOUND_S))
        join(own, WEB)
        before = seen_by_operator(node)
        node.peer_fields = {"pid": os.getpid() + 1, "uid": STRANGER}
        node.operator_fields = {"is_foreign": True} if is_foreign else {"uid": STRANGER}
        path = node.directories.operator_socket if on_operator_socket else node.path
        stranger = stack.enter_context(Connection(path, BOUND_S))
        for request in conversation:
            stranger.send(request)
        with contextlib.suppress(PeerError, WorldError):
            stranger.ask(wire.OwnGrant(wire.VERSION))  # its answer, or an earlier one
        node.operator_fields = {}
        assert seen_by_operator(node) == before
        stranger.close()
        until(lambda: len(node.honest().tenants) == 1)


@settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(commands)
def test_command_at_the_tenant_socket_is_refused_even_to_operators(command: wire.Request) -> None:
    with InProcessNode(gpus=GPUS) as node, Connection(node.path, BOUND_S) as peer:
        answer, _ = peer.ask(command)
        assert isinstance(answer, wire.Refusal)
        assert answer.reject.reason is Reason.NOT_ALLOWED


@pytest.mark.parametrize(
    "operators, fields, is_operator",
    [
        (OperatorsConfig(), {}, True),
        (OperatorsConfig(), {"uid": STRANGER}, False),
        (OperatorsConfig(users=(str(STRANGER),)), {"uid": STRANGER}, True),
        (OperatorsConfig(users=(str(STRANGER),)), {"uid": STRANGER + 1}, False),
        (OperatorsConfig(groups=("4242",)), {"uid": STRANGER, "gid": 4242}, True),
        (OperatorsConfig(groups=("4242",)), {"uid": STRANGER, "groups": (1, 4242)}, True),
        (OperatorsConfig(groups=("4242",)), {"uid": STRANGER, "gid": 4243, "groups": (4243,)}, False),
        (OperatorsConfig(users=(str(STRANGER),)), {"uid": STRANGER, "is_foreign": True}, False),
        (OperatorsConfig(), {"is_foreign": True}, False),
    ],
)
def test_operators_are_the_nodes_user_and_those_of_the_config(
    operators: OperatorsConfig, fields: dict[str, Any], is_operator: bool
) -> None:
    with InProcessNode(gpus=GPUS, operators=operators) as node, Connection(node.path, BOUND_S) as tenant:
        join(tenant, WEB)
        node.operator_fields = fields
        if is_operator:
            assert set_priority(node.directories, "web", 3).tenants == ["web"]
        else:
            with pytest.raises(NotPermittedError, match="only operators may do this"):
                set_priority(node.directories, "web", 3)


def test_ordinary_user_sees_its_own_tenants() -> None:
    with InProcessNode(gpus=GPUS) as node, contextlib.ExitStack() as stack:
        join(stack.enter_context(Connection(node.path, BOUND_S)), WEB)
        node.peer_fields = node.operator_fields = {"uid": STRANGER}
        job = stack.enter_context(Connection(node.path, BOUND_S))
        join(job, TenantSpec(Kind.OFFLINE, 7, "job"))
        answer = list_tenants(node.directories)
        assert [view.tenant.name for view in answer.tenants] == ["job"]
        assert answer.is_restricted
        assert len(answer.gpus) == len(node.honest().gpus)
        activity = read_activity(node.directories)
        assert activity.is_restricted
        [gpu] = activity.gpus
        assert gpu.gate is not None
        assert gpu.ledger is not None
        assert (
            [entry.slot for entry in gpu.gate.rules.entries]
            == list(gpu.gate.counts)
            == list(gpu.ledger.accounts)
            == [1]
        )
        job.ask(wire.Leave("exit 0"))
        assert [departure.tenant.name for departure in list_tenants(node.directories).departed] == ["job"]
        node.peer_fields = node.operator_fields = {"uid": STRANGER, "is_foreign": True}
        inside = list_tenants(node.directories)
        assert (inside.tenants, inside.departed) == ([], []), "in a container a user sees the container's tenants only"


def test_ordinary_user_gets_one_sentence_for_a_command() -> None:
    with InProcessNode(gpus=GPUS) as node:
        node.operator_fields = {"uid": STRANGER}
        for command in (
            lambda: evict(node.directories, ["web"], None),
            lambda: set_paused(node.directories, [], all_offline=True, paused=True),
            lambda: issue_token(node.directories, SPEC, 1),
        ):
            with pytest.raises(NotPermittedError, match="only operators"):
                command()
        node.directories.operator_socket.unlink()  # as in a container that has only the tenant socket
        with pytest.raises(NotPermittedError, match="only operators"):
            evict(node.directories, ["web"], None)
        assert list_tenants(node.directories).is_restricted


@pytest.mark.parametrize(
    "limits, spec, detail",
    [
        ({"kinds": (Kind.OFFLINE,)}, WEB, "may only run offline tenants"),
        ({"priority": 2}, WEB, "may not have priority 1: 2 is the highest"),
        ({"tenants": 0}, WEB, "may run 0 tenants at a time"),
        ({"memory": 1 << 29}, WEB, "may reserve 512MiB in total, and this makes 1GiB"),
        ({"memory": 1 << 30}, TenantSpec(Kind.OFFLINE, 7), "must name the memory of a tenant"),
        ({"share": 100_000}, TenantSpec(Kind.OFFLINE, 7, share_ppm=200_000), "may reserve a share of 10% in total"),
    ],
)
def test_join_beyond_a_users_limits_is_refused_without_a_turn(
    limits: dict[str, Any], spec: TenantSpec, detail: str
) -> None:
    tables = (LimitsConfig(user=str(STRANGER), **limits), LimitsConfig(user="*"))
    with InProcessNode(gpus=GPUS, limits=tables) as node, contextlib.ExitStack() as stack:
        node.peer_fields = {"uid": STRANGER}
        before = node.honest().turns
        answer, _ = stack.enter_context(Connection(node.path, BOUND_S)).ask(wire.Join(wire.VERSION, spec))
        assert isinstance(answer, wire.Refusal)
        assert answer.reject.reason is Reason.NOT_ALLOWED
        assert detail in answer.reject.detail
        assert node.honest().turns == before, "the journal records nothing of it"
        node.peer_fields = {}
        join(stack.enter_context(Connection(node.path, BOUND_S)), spec)


def test_limits_count_all_tenants_of_the_user_and_of_its_group() -> None:
    with (
        InProcessNode(gpus=GPUS, limits=(LimitsConfig(group="4242", tenants=2),)) as node,
        contextlib.ExitStack() as stack,
    ):
        node.peer_fields = {"uid": STRANGER, "groups": (4242,)}
        for _ in range(2):
            join(stack.enter_context(Connection(node.path, BOUND_S)))
        third = stack.enter_context(Connection(node.path, BOUND_S))
        answer, _ = third.ask(wire.Join(wire.VERSION, SPEC))
        assert isinstance(answer, wire.Refusal)
        node.peer_fields = {"uid": STRANGER + 1, "groups": (4242,)}
        join(stack.enter_context(Connection(node.path, BOUND_S)))


def test_unknown_tenant_is_still_a_config_error() -> None:
    with InProcessNode(gpus=GPUS) as node, pytest.raises(ConfigError, match="no tenant has the name"):
        set_priority(node.directories, "nobody", 3)
