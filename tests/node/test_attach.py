"""Processes attach to tenants: which tenant, which answers, and what happens when they leave."""

import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.client.commands import evict
from cotenant.node.client.connection import Connection
from cotenant.node.config.access import LimitsConfig
from cotenant.node.daemon.attaching import PROCESSES_PER_TENANT
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import NodeSettings, NodeStarted
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.units.instant import SECOND_NS
from cotenant.units.toml import SizeBytes
from tests.support.node_in_process import BOUND_S, SPEC, InProcessNode, join, open_files, received, until

pytestmark = pytest.mark.live

GPUS = (Gpu("a", 16 << 30), Gpu("b", 16 << 30))
MIB = 1 << 20


class Hook:
    """The connection of a process's hook."""

    def __init__(self, node: InProcessNode) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(node.path))
        self.socket.settimeout(BOUND_S)
        self._frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
        self._answers: list[tuple[wire.Answer, int]] = []

    def attach(self, fields: dict[str, str] | None = None, **message: Any) -> wire.Answer:
        """Attach with the descriptor of any file, and return the first answer."""
        self.send(fields, **message)
        return self.answer()[0]

    def send(self, fields: dict[str, str] | None = None, **message: Any) -> None:
        texts = {"grant": "", "token": "", "command": "python train.py", "visible": ""} | message
        data = wire.encode(wire.Attach(wire.HOOK_VERSION, fields or {}, **texts))
        with Path(os.devnull).open("rb") as pages:
            assert socket.send_fds(self.socket, [data], [pages.fileno()]) == len(data)

    def answer(self) -> tuple[wire.Answer, int]:
        """Return the next message and the number of descriptors that came with it, which are closed."""
        while not self._answers:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
            if not data:
                raise ConnectionResetError
            for descriptor in descriptors:
                os.close(descriptor)
            messages = [wire.decode_answer(frame) for frame in self._frames.feed(data)]
            self._answers += [(message, len(descriptors)) for message in messages]
        return self._answers.pop(0)

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def node() -> Iterator[InProcessNode]:
    """A node with two devices that has neither connections nor descriptors left over in the end."""
    before = open_files()
    with InProcessNode(gpus=GPUS, slots=8, most=400) as made:
        yield made
        made.honest()
        made.settled(0)
    assert open_files() <= before


def attached(answer: wire.Answer) -> wire.AttachAnswer:
    assert isinstance(answer, wire.AttachAnswer), answer
    return answer


def refused(answer: wire.Answer) -> Reject:
    assert isinstance(answer, wire.Refusal), answer
    return answer.reject


def test_ranks_of_a_job_get_its_page_before_the_answer(node: InProcessNode) -> None:
    hook = Hook(node)
    hook.send({"kind": "offline"}, gang="job", ranks=2)
    page, descriptors = hook.answer()
    assert isinstance(page, wire.GangPage)
    assert (page.ranks, descriptors) == (2, 1)
    answer = attached(hook.answer()[0])
    gang = node.processes.gangs[answer.gpu, answer.index]
    assert (gang.account[0], gang.name, gang.ranks) == (os.getuid(), "job", 2)
    hook.close()
    until(lambda: node.processes.disconnected)
    node.processes.leave(answer.gpu, answer.index)


def test_job_with_more_ranks_than_a_page_has_is_refused(node: InProcessNode) -> None:
    hook = Hook(node)
    hook.send({"kind": "offline"}, gang="job", ranks=33)
    answer, _ = hook.answer()
    assert isinstance(answer, wire.ProtocolViolation)
    assert "ranks" in answer.detail
    hook.close()


def test_program_joins_with_its_fields(node: InProcessNode) -> None:
    hook = Hook(node)
    node.environment["CUDA_VISIBLE_DEVICES"] = "0"
    fields = {"kind": "online", "priority": "3", "slo": "50ms", "memory": "4GiB", "share": "30", "name": "web"}
    hook.send(fields)
    answer, descriptors = hook.answer()
    [view] = node.honest().tenants
    spec = view.tenant.spec
    assert (spec.kind, spec.priority, spec.slo_ns, spec.memory_bytes) == (Kind.ONLINE, 3, 50_000_000, 4 << 30)
    assert (spec.share_ppm, spec.command, view.tenant.name) == (300_000, "python train.py", "web")
    grant = view.tenant.grant
    assert descriptors == 3
    assert attached(answer).slot == grant.slot
    assert attached(answer).generation == grant.generation
    assert (attached(answer).gpu, attached(answer).index) == (grant.gpu, 0)
    token = node.tokens.of_tenant((grant.slot, grant.generation), is_self_joined=True)
    expected = {"CUDA_VISIBLE_DEVICES": "0", "COTENANT_TENANT": "web", "COTENANT_TOKEN": token}
    assert attached(answer).environment == expected
    hook.close()
    until(lambda: node.processes.disconnected)
    node.processes.leave(grant.gpu, 0)
    until(lambda: not node.honest().tenants)
    assert node.honest().departed[-1].ending == "its last process ended"


def test_grant_file_gives_fields_that_variables_override(node: InProcessNode) -> None:
    hook = Hook(node)
    file = "# of the pod\nkind = online\nmemory = 1GiB\n\nname = 'pod'\n"
    attached(hook.attach({"memory": "2GiB"}, grant=file, visible="1"))
    [view] = node.honest().tenants
    assert (view.tenant.name, view.tenant.spec.kind, view.tenant.spec.memory_bytes) == ("pod", Kind.ONLINE, 2 << 30)
    assert view.tenant.grant.gpu == 1, "the device that the process sees"
    hook.close()


@pytest.mark.parametrize(
    "fields, file, words",
    [
        ({"priority": "12"}, "", ["COTENANT_PRIORITY = '12'", "<= 9"]),
        ({"slo": "50"}, "", ["COTENANT_SLO = '50'", "ms"]),
        ({"memory": "lots"}, "", ["COTENANT_MEMORY = 'lots'", "GiB"]),
        ({"share": "200"}, "", ["COTENANT_SHARE = '200%'", "100%"]),
        ({"kind": "root"}, "", ["COTENANT_KIND = 'root'", "online or offline"]),
        ({"slo": "50ms"}, "", ["COTENANT_SLO = '50ms'", "COTENANT_KIND=online"]),
        ({"colour": "red"}, "", ["COTENANT_COLOUR = 'red'", "kind, priority"]),
        ({}, "memory 1GiB", ["COTENANT_GRANT", "line 1", "key = value"]),
        ({}, "uid = 0", ["COTENANT_GRANT", "uid = 0"]),
    ],
)
def test_wrong_field_is_refused_with_its_value_and_a_remedy(
    node: InProcessNode, fields: dict[str, str], file: str, words: list[str]
) -> None:
    hook = Hook(node)
    reject = refused(hook.attach(fields, grant=file))
    assert reject.reason is Reason.BAD_FIELD
    for word in words:
        assert word in reject.detail
    assert node.honest().tenants == []
    hook.close()


def test_process_with_the_tenants_token_belongs_to_it(node: InProcessNode) -> None:
    first, second = Hook(node), Hook(node)
    token = attached(first.attach({"name": "web"})).environment["COTENANT_TOKEN"]
    answer = attached(second.attach({"name": "ignored"}, token=token))
    assert (answer.slot, answer.index) == (0, 1)
    assert len(node.honest().tenants) == 1
    first.close()
    second.close()


def test_program_of_a_supervised_tenant_attaches_by_descent_or_token(node: InProcessNode) -> None:
    with Connection(node.path, BOUND_S) as parent:
        answer, _ = parent.ask(wire.Join(wire.VERSION, SPEC))
        assert isinstance(answer, wire.Welcome)
        assert node.processes.supervisors == {(0, 1): os.getpid()}
        by_token, by_descent = Hook(node), Hook(node)
        assert attached(by_token.attach(token=answer.environment["COTENANT_TOKEN"])).slot == 0
        node.processes.parents[os.getpid()] = (0, 1)
        assert attached(by_descent.attach()).slot == 0
        assert len(node.honest().tenants) == 1
        for index in (0, 1):
            node.processes.leave(0, index)
        assert len(node.honest().tenants) == 1, "its parent keeps the tenant"
        by_token.close()
        parent.ask(wire.Leave("exit 0"))
        pages = [wire.Page(0, 100, 1)]
        assert received(by_descent.socket) == pages, "the node closes the connections of a tenant that left"


def test_near_process_with_the_same_fields_belongs_to_the_tenant(node: InProcessNode) -> None:
    hooks = [Hook(node) for _ in range(3)]
    attached(hooks[0].attach({"kind": "offline"}))
    node.processes.near = [(0, 1)]
    assert attached(hooks[1].attach({"kind": "offline"})).slot == 0
    assert attached(hooks[2].attach({"kind": "online"})).slot == 1, "other fields are another tenant"
    for hook in hooks:
        hook.close()


def test_token_of_a_tenant_of_another_user_is_refused(node: InProcessNode) -> None:
    first, thief = Hook(node), None
    token = attached(first.attach()).environment["COTENANT_TOKEN"]
    node.peer_fields = {"uid": os.geteuid() + 1}
    thief = Hook(node)
    assert refused(thief.attach(token=token)).reason is Reason.NOT_ALLOWED
    assert node.processes.count((0, 1)) == 1
    node.processes.containers = [(0, 1)]
    assert attached(thief.attach(token=token)).slot == 0, "a process of the same container may"
    first.close()
    thief.close()


@pytest.mark.parametrize(
    "token", ["x", "self.0.1.00", "run.0.1", "join.00", "run..", "self.9999999999999999999999.1.x"]
)
def test_invalid_token_is_refused(node: InProcessNode, token: str) -> None:
    hook = Hook(node)
    assert "COTENANT_TOKEN is not valid" in refused(hook.attach(token=token)).detail
    assert node.honest().tenants == []
    hook.close()


def test_operators_token_supplies_the_spec_of_one_tenant(node: InProcessNode) -> None:
    spec = TenantSpec(Kind.ONLINE, 1, "pod", memory_bytes=1 << 30)
    with Connection(node.directories.operator_socket, BOUND_S) as operator:
        issued = operator.ask(wire.IssueToken(wire.VERSION, spec, 60 * SECOND_NS))[0]
        late = operator.ask(wire.IssueToken(wire.VERSION, spec, SECOND_NS))[0]
    assert isinstance(issued, wire.Token)
    assert isinstance(late, wire.Token)
    hooks = [Hook(node) for _ in range(3)]
    attached(hooks[0].attach({"kind": "offline"}, token=issued.token))
    [view] = node.honest().tenants
    assert (view.tenant.name, view.tenant.spec.priority, view.tenant.spec.command) == ("pod", 1, "python train.py")
    assert attached(hooks[1].attach(token=issued.token)).slot == 0, "its siblings have the same token"
    node.clock.advance(2 * SECOND_NS)
    assert "expired" in refused(hooks[2].attach(token=late.token)).detail
    hooks[0].close()
    hooks[1].close()
    for index in (0, 1):
        node.processes.leave(0, index)
    until(lambda: not node.honest().tenants)
    assert "was used" in refused(hooks[2].attach(token=issued.token)).detail
    hooks[2].close()


def test_pages_reach_all_processes_of_the_device(node: InProcessNode) -> None:
    first, other, second = Hook(node), Hook(node), Hook(node)
    assert attached(first.attach(visible="0")).gpu == 0
    assert attached(other.attach(visible="1")).gpu == 1
    answer = attached(second.attach(visible="0"))
    assert second.answer() == (wire.Page(0, 100, 1), 1), "the new process gets the pages of those before it"
    assert first.answer() == (wire.Page(answer.index, answer.process_generation, answer.epoch), 1)
    other.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.answer()
    for hook in (first, other, second):
        hook.close()


def test_pages_for_a_process_that_does_not_read_are_bounded(node: InProcessNode) -> None:
    mute = Hook(node)
    mute.send(visible="0")
    until(lambda: node.processes.attached)
    [peer] = [peer for peer in list(node.listener._peers.values()) if peer.attached is not None]
    reader = Hook(node)
    answer = attached(reader.attach(visible="0"))
    reader.answer()
    for _ in range(300):  # a process that reconnects again and again with the same index
        reader.close()
        reader = Hook(node)
        token, generation = answer.environment["COTENANT_TOKEN"], answer.process_generation
        attached(reader.attach(token=token, index=answer.index, generation=generation))
        assert isinstance(reader.answer()[0], wire.Page)
    assert len(peer.pages) <= 1, "a later page of the same index replaces an earlier one"
    assert peer.unsent_bytes < 1000
    mute.close()
    reader.close()


def test_invalid_pages_close_the_connection_and_the_tenant_leaves(node: InProcessNode) -> None:
    node.processes.is_valid = False
    hook = Hook(node)
    assert hook.attach() == wire.ProtocolViolation("the pages are not sealed")
    until(lambda: not node.honest().tenants)
    hook.close()


def test_refusal_of_the_registry_reaches_the_process(node: InProcessNode) -> None:
    node.processes.refusal = Reject(Reason.GPU_FULL, "256 processes use this GPU")
    hook = Hook(node)
    assert refused(hook.attach()) == node.processes.refusal
    until(lambda: not node.honest().tenants)
    hook.close()


def test_attach_needs_exactly_one_descriptor(node: InProcessNode) -> None:
    data = wire.encode(wire.Attach(wire.HOOK_VERSION, {}, "", "", "", ""))
    [answer] = received(node.stranger(data))
    assert isinstance(answer, wire.ProtocolViolation)
    flood = node.stranger()
    with Path(os.devnull).open("rb") as pages:
        socket.send_fds(flood, [data], [pages.fileno()] * 100)
    assert received(flood) == [wire.ProtocolViolation("a frame carries at most one descriptor")]
    assert node.honest().tenants == []


def test_number_of_processes_of_a_tenant_is_limited(node: InProcessNode) -> None:
    hooks = [Hook(node)]
    token = attached(hooks[0].attach()).environment["COTENANT_TOKEN"]
    for _ in range(PROCESSES_PER_TENANT - 1):
        hooks.append(Hook(node))
        attached(hooks[-1].attach(token=token))
    hooks.append(Hook(node))
    assert "at most 64 processes" in refused(hooks[-1].attach(token=token)).detail
    for hook in hooks:
        hook.close()


def test_limits_of_a_user_apply_to_programs_that_join_by_themselves() -> None:
    limits = (LimitsConfig(user="*", memory=SizeBytes(1 << 30), tenants=1),)
    with InProcessNode(gpus=GPUS, limits=limits) as node:
        hooks = [Hook(node) for _ in range(2)]
        assert "add --memory" in refused(hooks[0].attach()).detail
        attached(hooks[0].attach({"memory": "1GiB"}))
        assert refused(hooks[1].attach({"memory": "1MiB"})).reason is Reason.LIMIT_REACHED
        for hook in hooks:
            hook.close()


def test_evicted_tenant_without_a_parent_gets_its_signals_from_the_node(node: InProcessNode) -> None:
    hook = Hook(node)
    attached(hook.attach({"name": "job"}))
    evict(node.directories, ["job"], "1s")

    def has_got(number: int) -> bool:
        node.clock.advance(10 * SECOND_NS)  # the times to drain and of the grace are over
        node.honest()
        return ((0, 1), number) in node.processes.signals

    until(lambda: has_got(signal.SIGTERM))
    until(lambda: has_got(signal.SIGKILL))
    hook.close()


def test_process_keeps_its_tenant_over_a_restart_of_the_node(node: InProcessNode) -> None:
    first, second = Hook(node), Hook(node)
    token = attached(first.attach({"name": "web"})).environment["COTENANT_TOKEN"]
    attached(second.attach(token=token))
    restart(node)
    assert [view.connected for view in node.honest().tenants] == [False]
    again = [Hook(node) for _ in range(2)]
    assert attached(again[0].attach(token=token, index=1, generation=101)).slot == 0
    assert [view.connected for view in node.honest().tenants] == [True]
    assert attached(again[1].attach(token=token, index=0, generation=100)).slot == 0
    assert [(view.tenant.name, view.tenant.grant.generation) for view in node.honest().tenants] == [("web", 1)]
    for hook in (first, second, *again):
        hook.close()


def test_joining_process_finds_its_tenant_after_a_restart_without_a_token(node: InProcessNode) -> None:
    first = Hook(node)
    attached(first.attach({"name": "web"}))
    restart(node)
    again = Hook(node)
    assert attached(again.attach({"name": "web"})).generation == 1
    assert [view.connected for view in node.honest().tenants] == [True]
    for hook in (first, again):
        hook.close()


def restart(node: InProcessNode) -> None:
    """Let the state machine start anew, and the listener and the registry forget all processes."""
    node.loop.post(NodeStarted(NodeSettings(8, 10**10, gpus=GPUS), "test", 0))
    for peer in list(node.listener._peers.values()):
        peer.attached = None
    node.listener._attaching._members.clear()
    node.processes.remove((0, 1))


def test_own_grant_is_that_of_the_callers_tenant(node: InProcessNode) -> None:
    with Connection(node.path, BOUND_S) as tenant, Connection(node.path, BOUND_S) as program:
        grant = join(tenant)
        answer, _ = program.ask(wire.OwnGrant(wire.VERSION))
        assert isinstance(answer, wire.Refusal)
        node.processes.parents[os.getpid()] = (grant.slot, grant.generation)
        answer, _ = program.ask(wire.OwnGrant(wire.VERSION))
        assert answer == wire.OwnGrantAnswer(node.honest().tenants[0].tenant.name, grant)


@pytest.mark.parametrize("visible", ["²", "٣", "0,²", "9" * 4000, "-1", "1e3", "\0", "\u2028"])
@pytest.mark.parametrize("ordinal", [0, 1])
def test_no_text_of_visible_devices_ends_the_node(node: InProcessNode, visible: str, ordinal: int) -> None:
    for is_foreign in (False, True):
        node.peer_fields = {"is_foreign": is_foreign}
        hook = Hook(node)
        answer = hook.attach(visible=visible, ordinal=ordinal)
        assert isinstance(answer, wire.AttachAnswer | wire.Refusal)
        hook.close()
    node.honest()


def test_defect_of_the_node_costs_only_the_connection_that_finds_it(node: InProcessNode) -> None:
    found: list[Exception] = []
    node.listener.on_defect = found.append

    def fail(*_: object) -> None:
        raise LookupError("no such thing")

    node.processes.tenant_of = fail  # type: ignore[assignment, method-assign]
    first, hook = Hook(node), Hook(node)
    answer = hook.attach()
    assert isinstance(answer, wire.ProtocolViolation)
    assert "failed to handle" in answer.detail
    assert [type(error) for error in found] == [LookupError]
    del node.processes.tenant_of
    attached(first.attach())
    first.close()
    hook.close()


def test_defect_in_a_turn_ends_the_node() -> None:
    """The state may be incomplete then; the next node reads it from the journal."""
    node = InProcessNode(gpus=GPUS)
    node.processes.supervise = lambda *_: 1 // 0  # type: ignore[assignment]
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(str(node.path))
        parent.sendall(wire.encode(wire.Join(wire.VERSION, SPEC)))
        until(lambda: node.loop.has_failed)
    with pytest.raises(ZeroDivisionError):
        node.close()


def test_process_that_the_node_cannot_take_is_refused(node: InProcessNode) -> None:
    def fail(*arguments: object) -> None:
        os.close(int(str(arguments[3])))  # it owns the descriptor
        raise OSError(errno.EMFILE, "Too many open files")

    node.processes.attach = fail  # type: ignore[assignment, method-assign]
    hook = Hook(node)
    answer = hook.attach()
    assert isinstance(answer, wire.ProtocolViolation)
    assert "Too many open files" in answer.detail
    hook.close()
    del node.processes.attach
    assert node.honest().tenants == []
