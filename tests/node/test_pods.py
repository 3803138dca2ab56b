"""Tenants in Kubernetes pods: their tokens, what the node answers them, and how they end."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import WorldError
from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.node.daemon.proc import pod_of
from cotenant.node.daemon.tokens import LOOKUP_TOKEN, REVOKED_LIMIT, Tokens
from cotenant.node.daemon.waiting_pods import ANSWER_NS, PODS_LIMIT
from cotenant.node.directories import link_socket, listen
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import NodeSettings, NodeStarted
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from tests.node.test_attach import Hook, attached, refused
from tests.support.node_in_process import BOUND_S, InProcessNode, until
from tests.support.strategies import specs

GPUS = (Gpu("a", 16 << 30, ("GPU-aa", "0")), Gpu("b", 16 << 30, ("GPU-bb", "1")))
POD = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
CLAIM = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
SPEC = TenantSpec(Kind.OFFLINE, 7, "team.job", memory_bytes=1 << 30, gpu="GPU-bb", pod=f"{POD}/{CLAIM}")
SYSTEMD = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/cri-containerd-{}.scope"


def cgroup(pod: str, container: str = "c" * 64) -> str:
    return f"/kubepods/besteffort/pod{pod}/{container}"


@pytest.fixture
def node() -> Iterator[InProcessNode]:
    with InProcessNode(gpus=GPUS, slots=8, most=400, do_pods_need_grant=True) as made:
        made.peer_fields = {"cgroup": cgroup(POD), "is_foreign": True}
        yield made


def ask(node: InProcessNode, request: wire.Request) -> wire.Answer:
    with Connection(node.directories.operator_socket, BOUND_S) as operator:
        return operator.ask(request)[0]


def issue(node: InProcessNode, spec: TenantSpec = SPEC) -> str:
    answer = ask(node, wire.IssuePodToken(wire.VERSION, spec))
    assert isinstance(answer, wire.Token)
    return answer.token


def grant(token: str) -> dict[str, Any]:
    return {"grant": f"# of a claim\ntoken = {token}\n"}


def restart(node: InProcessNode) -> None:
    """Let the state machine start anew, and the listener and the registry forget all processes."""
    node.loop.post(NodeStarted(NodeSettings(8, 10**10, gpus=GPUS), "test", 0))
    for peer in list(node.listener._peers.values()):
        peer.attached = None
    node.listener._attaching._members.clear()
    node.processes.remove((0, 1))


# -- cgroups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, pod",
    [
        (cgroup(POD), POD),
        (f"/kubepods/pod{POD}/x", POD),
        (SYSTEMD.format(POD.replace("-", "_"), "c" * 64), POD),
        (f"/../../kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/x", POD),
        (f"/docker/x/kubelet.slice/kubelet-kubepods-burstable-pod{POD.replace('-', '_')}.slice/x", POD),
        ("/kubepods/besteffort/pod0123456789abcdef0123456789abcdef/x", "0123456789abcdef0123456789abcdef"),
        (f"{cgroup(POD)}/kubepods/pod{OTHER}/x", POD),
        ("", ""),
        ("/system.slice/docker.service", ""),
        ("/user.slice/podman-1234.scope", ""),
        (f"/pod{POD}x/y", ""),
        (f"/x{POD}", ""),
        (f"/tripod{POD}/y", ""),
    ],
)
def test_pod_is_found_in_a_cgroup(path: str, pod: str) -> None:
    assert pod_of(path) == pod


# -- tokens ----------------------------------------------------------------------------------------------------------


@given(specs())
def test_token_contains_its_spec_and_the_same_spec_has_the_same_token(spec: TenantSpec) -> None:
    tokens, others = Tokens(b"k" * 32), Tokens(b"x" * 32)
    token = tokens.issue_for_pod(spec)
    assert tokens.read_of_pod(token) == spec
    assert Tokens(b"k" * 32).issue_for_pod(spec) == token, "no table is needed"
    assert others.read_of_pod(token) is None
    assert tokens.read(token) is None, "it is no token of a tenant"


@given(st.text(max_size=40), st.integers(0, 500))
def test_changed_token_is_not_valid(noise: str, at: int) -> None:
    tokens = Tokens(b"k" * 32)
    token = tokens.issue_for_pod(SPEC)
    at = min(at, len(token))
    changed = token[:at] + noise + token[at:]
    assert (tokens.read_of_pod(changed) is not None) == (changed == token)
    assert tokens.read_of_pod(noise) is None
    assert tokens.read_of_pod(f"pod.{noise}") is None


def test_revoked_tokens_are_remembered_and_their_number_is_limited(tmp_path: Path) -> None:
    file = tmp_path / "revoked.json"
    tokens = Tokens(b"k" * 32, file)
    token = tokens.issue_for_pod(SPEC)
    tokens.revoke_of_pod(token)
    assert Tokens(b"k" * 32, file).is_revoked(token)
    assert tokens.issue_for_pod(SPEC) == token
    assert not Tokens(b"k" * 32, file).is_revoked(token), "a token that is issued again is valid again"
    tokens._revoked = {str(number): 1 for number in range(REVOKED_LIMIT)}
    tokens.revoke_of_pod(token)
    assert len(tokens._revoked) == REVOKED_LIMIT
    assert tokens.is_revoked(token)
    file.write_text("{")
    assert not Tokens(b"k" * 32, file).is_revoked(token)


def test_revocation_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    tokens = Tokens(b"k" * 32, tmp_path / "missing" / "revoked.json")
    with pytest.raises(WorldError, match=r"revoked\.json"):
        tokens.revoke_of_pod(tokens.issue_for_pod(SPEC))


# -- joining with a token --------------------------------------------------------------------------------------------


@pytest.mark.live
def test_all_processes_of_a_pod_are_one_tenant_with_the_spec_of_the_token(node: InProcessNode) -> None:
    token = issue(node)
    first = Hook(node)
    answer = attached(first.attach({"kind": "online", "priority": "0"}, **grant(token)))
    [view] = node.honest().tenants
    assert msgspec.structs.replace(view.tenant.spec, command="") == SPEC
    assert (view.tenant.name, view.tenant.grant.gpu, answer.gpu) == ("team.job", 1, 1)
    node.peer_fields = {"cgroup": cgroup(POD, "d" * 64), "is_foreign": True, "uid": os.geteuid() + 5}
    second = Hook(node)
    assert attached(second.attach(**grant(token))).slot == answer.slot, "another container and user of the pod"
    assert len(node.honest().tenants) == 1
    first.close()
    second.close()


@pytest.mark.live
def test_restarted_container_joins_with_the_same_token(node: InProcessNode) -> None:
    token = issue(node)
    for generation in (1, 2):
        hook = Hook(node)
        answer = attached(hook.attach(**grant(token)))
        assert answer.generation == generation
        hook.close()
        until(lambda: node.processes.disconnected)
        node.processes.leave(1, answer.index)
        until(lambda: not node.honest().tenants)


@pytest.mark.live
def test_child_whose_tenant_has_left_joins_with_the_grant_and_not_with_its_own_fields(node: InProcessNode) -> None:
    token = issue(node)
    hook = Hook(node)
    answer = attached(hook.attach(**grant(token)))
    own = answer.environment["COTENANT_TOKEN"]
    hook.close()
    until(lambda: node.processes.disconnected)
    node.processes.leave(1, answer.index)
    until(lambda: not node.honest().tenants)
    child = Hook(node)
    attached(child.attach({"kind": "online"}, token=own, **grant(token)))
    assert node.honest().tenants[0].tenant.spec.kind is Kind.OFFLINE
    node.peer_fields = {"cgroup": cgroup(OTHER), "is_foreign": True, "pid": os.getpid() + 1}
    thief = Hook(node)
    stolen = node.honest().tenants[0].tenant.grant
    own = node.tokens.of_tenant((stolen.slot, stolen.generation), is_self_joined=True)
    assert "another pod" in refused(thief.attach(token=own)).detail
    child.close()
    thief.close()


@pytest.mark.live
@pytest.mark.parametrize("path", [cgroup(OTHER), "", "/user.slice"])
def test_token_works_only_in_its_pod(node: InProcessNode, path: str) -> None:
    token = issue(node)
    node.peer_fields = {"cgroup": path, "is_foreign": True}
    hook = Hook(node)
    reject = refused(hook.attach(**grant(token)))
    assert (reject.reason, "another pod" in reject.detail) == (Reason.NOT_ALLOWED, True)
    hook.close()


@pytest.mark.live
def test_revoked_token_is_refused_until_it_is_issued_again(node: InProcessNode) -> None:
    token = issue(node)
    assert isinstance(ask(node, wire.RevokePodToken(wire.VERSION, token)), wire.Done)
    hook = Hook(node)
    assert "was released" in refused(hook.attach(**grant(token))).detail
    assert issue(node) == token
    attached(hook.attach(**grant(token)))
    assert isinstance(ask(node, wire.RevokePodToken(wire.VERSION, "pod.x.y")), wire.Done), "of another key"
    hook.close()


@pytest.mark.live
def test_processes_find_their_tenant_after_a_restart_of_the_node(node: InProcessNode) -> None:
    token = issue(node)
    first = Hook(node)
    answer = attached(first.attach(**grant(token)))
    restart(node)
    node.peer_fields = {"cgroup": cgroup(POD), "is_foreign": True, "uid": os.geteuid() + 5}
    new = Hook(node)  # a container that started while the node was down
    assert attached(new.attach(**grant(token))).slot == answer.slot
    node.peer_fields = {"cgroup": cgroup(POD), "is_foreign": True}
    again = Hook(node)
    own = answer.environment["COTENANT_TOKEN"]
    assert attached(again.attach(token=own, index=answer.index, generation=100, **grant(token))).slot == answer.slot
    [view] = node.honest().tenants
    assert (view.connected, view.tenant.grant.generation) == (True, answer.generation)
    for hook in (first, new, again):
        hook.close()


@pytest.mark.live
def test_process_in_a_pod_joins_only_with_a_grant(node: InProcessNode) -> None:
    hook = Hook(node)
    assert "resource claim" in refused(hook.attach({"kind": "online"})).detail
    with Connection(node.path, BOUND_S) as parent:
        answer, _ = parent.ask(wire.Join(wire.VERSION, TenantSpec(Kind.ONLINE, 0)))
        assert isinstance(answer, wire.Refusal)
    node.peer_fields = {"cgroup": "/user.slice", "is_foreign": False}
    with Connection(node.path, BOUND_S) as parent:
        answer, _ = parent.ask(wire.Join(wire.VERSION, SPEC))
        assert isinstance(answer, wire.Refusal), "nobody names a pod by itself"
        answer, _ = parent.ask(wire.Join(wire.VERSION, TenantSpec(Kind.ONLINE, 0)))
        assert isinstance(answer, wire.Welcome)
    hook.close()


@pytest.mark.live
def test_token_needs_a_pod_and_an_operator(node: InProcessNode) -> None:
    answer = ask(node, wire.IssuePodToken(wire.VERSION, TenantSpec(Kind.OFFLINE, 7)))
    assert isinstance(answer, wire.Refusal)
    with Connection(node.path, BOUND_S) as stranger:
        for request in (
            wire.IssuePodToken(wire.VERSION, SPEC),
            wire.RevokePodToken(wire.VERSION, "x"),
            wire.AnswerPod(wire.VERSION, POD, None),
            wire.AnnounceDisruption(wire.VERSION, 0, 1, True),
        ):
            refusal, _ = stranger.ask(request)
            assert isinstance(refusal, wire.Refusal)
            assert refusal.reject.reason is Reason.NOT_ALLOWED


# -- joining with the answer of an operator --------------------------------------------------------------------------


def wait_in_pod(node: InProcessNode) -> Hook:
    hook = Hook(node)
    hook.send(**grant(LOOKUP_TOKEN))
    until(lambda: node.honest().waiting_pods == [POD])
    return hook


@pytest.mark.live
def test_pod_waits_for_the_answer_and_the_node_chooses_its_gpu(node: InProcessNode) -> None:
    first, second = wait_in_pod(node), wait_in_pod(node)
    until(lambda: len(node.listener._attaching.pods._attaches[POD]) == 2)
    spec = msgspec.structs.replace(SPEC, pod=POD, gpu="")
    wrong = ask(node, wire.AnswerPod(wire.VERSION, POD, TenantSpec(Kind.OFFLINE, 7, pod=OTHER)))
    assert isinstance(wrong, wire.Refusal)
    assert isinstance(ask(node, wire.AnswerPod(wire.VERSION, POD, spec)), wire.Done)
    slots = {attached(hook.answer()[0]).slot for hook in (first, second)}
    assert len(slots) == 1
    assert node.honest().waiting_pods == []
    third = Hook(node)
    assert {attached(third.attach(**grant(LOOKUP_TOKEN))).slot} == slots, "it needs no further answer"
    for hook in (first, second, third):
        hook.close()


@pytest.mark.live
def test_refusal_and_silence_reach_the_processes_of_a_pod(node: InProcessNode) -> None:
    first = wait_in_pod(node)
    ask(node, wire.AnswerPod(wire.VERSION, POD, None, "pod a/b: kind = 'x': write online or offline"))
    assert "kind = 'x'" in refused(first.answer()[0]).detail
    second = wait_in_pod(node)
    node.clock.advance(ANSWER_NS)
    node.honest()
    assert "no kubelet plugin" in refused(second.answer()[0]).detail
    third = wait_in_pod(node)
    third.close()
    until(lambda: node.honest().waiting_pods == [])
    ask(node, wire.AnswerPod(wire.VERSION, POD, msgspec.structs.replace(SPEC, pod=POD)))
    assert node.honest().tenants == []
    node.peer_fields = {"cgroup": "/user.slice"}
    outside = Hook(node)
    assert "Kubernetes pod" in refused(outside.attach(**grant(LOOKUP_TOKEN))).detail
    for hook in (first, second, outside):
        hook.close()


@pytest.mark.live
def test_number_of_waiting_pods_is_limited(node: InProcessNode) -> None:
    waiting = wait_in_pod(node)
    [attach] = node.listener._attaching.pods._attaches[POD]
    for number in range(PODS_LIMIT - 1):
        assert node.listener._attaching.pods.add(str(number), attach, 0)
    assert not node.listener._attaching.pods.add("one more", attach, 0)
    assert node.listener._attaching.pods.add(POD, attach, 0), "further processes of a waiting pod may wait"
    for number in range(PODS_LIMIT - 1):
        node.listener._attaching.pods.take(str(number))
    node.listener._attaching.pods._attaches[POD] = [attach]
    waiting.close()


# -- the socket in containers ----------------------------------------------------------------------------------------


def test_link_follows_the_socket_of_a_new_node(tmp_path: Path) -> None:
    path, directory = tmp_path / "tenant.sock", tmp_path / "tenant"
    for _ in range(2):
        with listen(path, 0o666):
            for _ in range(2):
                link_socket(path, directory)
            assert (directory / "tenant.sock").stat().st_ino == path.stat().st_ino
    assert list(directory.iterdir()) == [directory / "tenant.sock"]
    assert directory.stat().st_mode & 0o777 == 0o755
