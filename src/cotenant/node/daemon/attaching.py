"""Attaches processes to tenants: finds the tenant of a process, or makes it join as a new one.

A tenant whose processes joined by themselves has no parent process and no connection of its own. The state machine
knows it by a number that belongs to no connection (`_Member.number`), so it stays while its processes come and go.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import ConfigError, PeerError, WorldError
from cotenant.gate.grant import Grant
from cotenant.node import wire
from cotenant.node.config.grant_fields import TOKEN_FIELD, merge_fields, spec_of_fields
from cotenant.node.daemon.access import Access
from cotenant.node.daemon.connection import AttachedAt, PeerConnection, close_descriptor
from cotenant.node.daemon.proc import pod_of
from cotenant.node.daemon.tokens import LOOKUP_TOKEN, POD_TOKEN_PREFIX, Tokens
from cotenant.node.daemon.waiting_pods import WaitingAttach, WaitingPods
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import Event, PeerLost, TenantJoined, TenantLeft, TenantResumed, TenantSuspended
from cotenant.node.model.gang import GangKey
from cotenant.node.model.gpu import SOFT_PREFIX, Gpu, name_gpus
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.tenant import COMMAND_LIMIT, GPU_LIMIT, Tenant, TenantSpec, TenantView
from cotenant.node.ports import Processes, TenantKey
from cotenant.units.instant import Instant

PROCESSES_PER_TENANT: Final = 64
PROCESSES_PER_USER: Final = 192
"""Of the 256 processes of a device, so that one user cannot keep out all others."""
_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_NUMBER_DIGITS: Final = 4
_OTHER_POD: Final = "COTENANT_TOKEN belongs to another pod; a claim is of one pod, so give each pod a claim of its own"
_NO_ANSWER: Final = "no kubelet plugin has said what this pod may use; see the log of: cotenant kubernetes plugin"
NEEDS_GRANT: Final = (
    "a process in a Kubernetes pod joins with the grant of a resource claim (node.pods = granted); "
    "give the container a claim for a GPU, and do not change COTENANT_GRANT"
)


class NodeServices(NamedTuple):
    """What the listener needs of the node."""

    tenants: Callable[[], list[TenantView]]
    gpus: Callable[[], Sequence[Gpu]]
    tenant_list: Callable[[], wire.TenantList]
    activity: Callable[[], wire.Activity]
    environment: Callable[[Grant], dict[str, str]]
    """Returns the variables of a tenant's program."""
    on_join: Callable[[TenantSpec], None]
    """Receives the spec of a join before the state machine."""
    processes: Processes
    access: Access
    tokens: Tokens
    do_pods_need_grant: bool = False
    """Whether a process in a Kubernetes pod may only join with what an operator granted to its pod."""


class Replies(NamedTuple):
    """How attaching reaches the peers and the state machine."""

    post: Callable[[Event], None]
    send: Callable[[PeerConnection, wire.Answer, tuple[int, ...]], None]
    refuse: Callable[[PeerConnection, Reject], None]
    drop: Callable[[PeerConnection, str], None]
    next_number: Callable[[], int]
    now: Callable[[], Instant]
    attached: Callable[[], Iterable[PeerConnection]]
    """Returns the connections of attached processes."""
    objection: Callable[[PeerIdentity, TenantSpec], Reject | None]
    """Returns why a user's limits forbid a join."""


class _Member:
    """A tenant whose processes joined by themselves."""

    __slots__ = ("cgroup", "fields", "group", "is_pending", "number", "spec", "tenant", "token", "uid", "waiting")

    def __init__(self, number: int, peer: PeerIdentity, spec: TenantSpec, fields: Mapping[str, str] | None) -> None:
        self.number = number
        self.uid = peer.uid
        self.cgroup = peer.cgroup if peer.is_foreign else ""
        self.group = _process_group(peer.pid)
        self.spec = spec
        self.fields = fields
        self.token = ""
        self.tenant: TenantKey | None = None
        self.is_pending = True
        self.waiting: list[WaitingAttach] = []

    def may_take(self, peer: PeerIdentity, fields: Mapping[str, str]) -> bool:
        """Return whether a process that the registry does not know yet belongs to this tenant, which joins now."""
        is_near = bool(self.cgroup and self.cgroup == peer.cgroup) or self.group == _process_group(peer.pid) > 0
        return self.is_pending and self.uid == peer.uid and self.fields == fields and is_near


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid) if pid > 0 else 0
    except OSError:
        return 0


def _is_number(text: str) -> bool:
    """Return whether int() accepts this text; str.isdigit() alone is also true for superscripts."""
    return text.isascii() and text.isdigit()


@contextlib.contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    """Close a descriptor if an exception is raised, which is a defect: a peer that repeats it must not use up all."""
    try:
        yield
    except Exception:
        close_descriptor(descriptor)
        raise


class Attaching:
    """Handles the messages of hooks, and the tenants that joined by themselves."""

    def __init__(self, services: NodeServices, replies: Replies) -> None:
        """Begin without tenants that joined by themselves."""
        self._services = services
        self._replies = replies
        self._members: dict[int, _Member] = {}
        self.pods = WaitingPods()

    # -- an attach -------------------------------------------------------------------------------------------------

    def handle(self, connection: PeerConnection, message: wire.Attach, descriptor: int) -> None:
        """Attach a process; it owns the descriptor of its pages from now on."""
        waiting = WaitingAttach(connection, message, descriptor)
        try:
            fields = merge_fields(message.fields, message.grant)
            token = self._token_of(message.token, fields.pop(TOKEN_FIELD, ""))
            with _closed_on_error(descriptor):
                found = self._find(connection.identity, fields, token)
            if isinstance(found, _Member):
                self._add(found, waiting)
            elif isinstance(found, TenantView):
                self._attach(waiting, found.tenant)
            elif isinstance(found, Reject):
                self._refuse(waiting, found)
            else:
                self._join(waiting, fields, token)
        except ConfigError as error:
            self._refuse(waiting, Reject(Reason.BAD_FIELD, str(error)))

    def _token_of(self, own: str, granted: str) -> str:
        """Return the token that counts: the process's own, unless its tenant has left and the grant has another."""
        parsed = self._services.tokens.read(own) if own and granted else None
        return granted if not own or (parsed is not None and self._view(parsed.tenant) is None) else own

    def _find(self, peer: PeerIdentity, fields: Mapping[str, str], token: str) -> TenantView | _Member | Reject | None:
        """Return the tenant of a process by token, ancestors, container or process group; None: a new one."""
        processes = self._services.processes
        if token:
            found = self._find_by_token(peer, token)
            if found is not None:
                return found
        tenant = processes.tenant_of(peer.pid)
        if tenant is not None and (view := self._view(tenant)) is not None:
            return self._member_or_view(view, peer, is_self_joined=False)
        for related in processes.related(peer):
            member = self._member_of(related)
            if member is not None and member.fields == fields:
                return member
        for member in self._members.values():
            if member.may_take(peer, fields):
                return member
        for view in self._services.tenants():  # after a restart of the node, the process that joined comes back
            if not view.connected and (view.tenant.pid, view.tenant.uid) == (peer.pid, peer.uid):
                return self._member_or_view(view, peer, is_self_joined=True)
        return None

    def _find_by_token(self, peer: PeerIdentity, token: str) -> TenantView | _Member | Reject | None:
        if token == LOOKUP_TOKEN or token.startswith(POD_TOKEN_PREFIX):
            return self._find_of_pod(peer, token)
        parsed = self._services.tokens.read(token)
        if parsed is None:
            for member in self._members.values():
                if member.token == token and (member.uid == peer.uid or self._shares_container(member.tenant, peer)):
                    return member
            return None
        view = self._view(parsed.tenant)
        if view is None:  # the tenant has left; the process may join anew
            return None
        if view.tenant.uid != peer.uid and not self._shares_container(parsed.tenant, peer):
            return Reject(Reason.NOT_ALLOWED, "COTENANT_TOKEN belongs to a tenant of another user; unset it")
        if view.tenant.spec.pod and view.tenant.spec.pod_uid != pod_of(peer.cgroup):
            return Reject(Reason.NOT_ALLOWED, _OTHER_POD)
        return self._member_or_view(view, peer, is_self_joined=parsed.is_self_joined)

    def _find_of_pod(self, peer: PeerIdentity, token: str) -> TenantView | _Member | Reject | None:
        """Return the tenant of a pod, whatever the user of the process; None: it has none yet."""
        pod = pod_of(peer.cgroup)
        if token != LOOKUP_TOKEN:
            spec = self._services.tokens.read_of_pod(token)
            if spec is None:
                return None
            if spec.pod_uid != pod:
                return Reject(Reason.NOT_ALLOWED, _OTHER_POD)
            if self._services.tokens.is_revoked(token):
                return Reject(Reason.NOT_ALLOWED, "the claim of this pod was released, so its processes may not join")
            pod = spec.pod
        elif not pod:
            return Reject(Reason.NOT_ALLOWED, "this grant is for processes in a Kubernetes pod")
        for member in self._members.values():
            if member.spec.pod == pod:
                return member
        for view in self._services.tenants():  # after a restart of the node
            if not view.connected and view.tenant.spec.pod == pod:
                found = self._member_or_view(view, peer, is_self_joined=True)
                if isinstance(found, _Member):
                    found.uid = view.tenant.uid  # the containers of a pod may have several users
                return found
        return None

    def _shares_container(self, tenant: TenantKey | None, peer: PeerIdentity) -> bool:
        return tenant is not None and self._services.processes.shares_container(tenant, peer)

    def _member_or_view(self, view: TenantView, peer: PeerIdentity, *, is_self_joined: bool) -> TenantView | _Member:
        """Return the member of a tenant that joined by itself; one of an earlier node resumes its slot first."""
        grant = view.tenant.grant
        member = self._member_of((grant.slot, grant.generation))
        if member is None and is_self_joined and not view.connected:
            member = _Member(self._replies.next_number(), peer, view.tenant.spec, None)
            member.tenant = (grant.slot, grant.generation)
            self._members[member.number] = member
        return view if member is None else member

    def _add(self, member: _Member, waiting: WaitingAttach) -> None:
        """Attach a process to a tenant that joined by itself, now or when it has its slot."""
        if not member.is_pending:
            view = None if member.tenant is None else self._view(member.tenant)
            if view is not None:
                self._attach(waiting, view.tenant)
            else:
                self._refuse(waiting, Reject(Reason.EVICTED, "the tenant of this process has left"))
            return
        is_first = not member.waiting
        member.waiting.append(waiting)
        waiting.connection.awaits_tenant = True
        if is_first and member.tenant is not None:
            # The registry of processes identified this process; the pid on record may be of one that has ended.
            view = self._view(member.tenant)
            pid = waiting.connection.identity.pid if view is None else view.tenant.pid
            self._replies.post(TenantResumed(member.number, pid, member.uid, *member.tenant))

    def _join(self, waiting: WaitingAttach, fields: Mapping[str, str], token: str) -> None:
        """Make a process join as a new tenant."""
        peer, message = waiting.connection.identity, waiting.message
        if token == LOOKUP_TOKEN:
            self._wait_for_pod(waiting, pod_of(peer.cgroup))
            return
        is_known = bool(token) and self._services.tokens.read(token) is not None  # of a tenant that has left
        spec = self._services.tokens.take(token, self._replies.now()) or self._services.tokens.read_of_pod(token)
        if token and not is_known and spec is None:
            detail = "COTENANT_TOKEN is not valid: it was used, has expired, or the node restarted; ask for another"
            self._refuse(waiting, Reject(Reason.NOT_ALLOWED, detail))
            return
        if spec is None:
            if self._services.do_pods_need_grant and pod_of(peer.cgroup):
                self._refuse(waiting, Reject(Reason.NOT_ALLOWED, NEEDS_GRANT))
                return
            spec = spec_of_fields(fields, message.command, self._devices_named(peer, message.visible))
            objection = self._replies.objection(peer, spec)
            if objection is not None:
                self._refuse(waiting, objection)
                return
        self._begin(waiting, spec, fields, token)

    def _begin(self, waiting: WaitingAttach, spec: TenantSpec, fields: Mapping[str, str], token: str) -> None:
        """Let a new tenant join for a process."""
        peer = waiting.connection.identity
        if not spec.command:
            spec = msgspec.structs.replace(spec, command=waiting.message.command[:COMMAND_LIMIT])
        member = _Member(self._replies.next_number(), peer, spec, fields)
        member.token = token
        self._members[member.number] = member
        member.waiting.append(waiting)
        waiting.connection.awaits_tenant = True
        self._services.on_join(spec)
        self._replies.post(TenantJoined(member.number, peer.pid, peer.uid, spec))

    # -- pods --------------------------------------------------------------------------------------------------------

    def _wait_for_pod(self, waiting: WaitingAttach, pod: str) -> None:
        if self.pods.add(pod, waiting, self._replies.now()):
            waiting.connection.awaits_tenant = True
        else:
            self._refuse(waiting, Reject(Reason.QUEUE_FULL, "too many pods wait for the kubelet plugin; try again"))

    def answer_operator(
        self, request: wire.IssuePodToken | wire.RevokePodToken | wire.AnswerPod
    ) -> wire.Token | wire.Done | wire.Refusal:
        """Carry out a request about the grants of pods."""
        tokens = self._services.tokens
        try:
            match request:
                case wire.IssuePodToken(spec=spec) if spec.pod:
                    return wire.Token(tokens.issue_for_pod(spec))
                case wire.RevokePodToken(token=token) if tokens.read_of_pod(token) is not None:
                    tokens.revoke_of_pod(token)
                case wire.AnswerPod(pod=pod, spec=answer, refusal=refusal) if answer is None or answer.pod_uid == pod:
                    self._pod_answered(pod, answer, refusal)
                case wire.RevokePodToken():
                    pass  # of a key that is gone, so it is not valid
                case _:
                    return wire.Refusal(Reject(Reason.BAD_FIELD, "spec.pod must be the uid of the pod"))
        except WorldError as error:
            return wire.Refusal(Reject(Reason.NOT_WRITABLE, str(error)))
        return wire.Done()

    def _pod_answered(self, pod: str, spec: TenantSpec | None, refusal: str) -> None:
        for waiting in self.pods.take(pod):
            waiting.connection.awaits_tenant = False
            found = self._find_of_pod(waiting.connection.identity, LOOKUP_TOKEN)
            if spec is None or refusal:
                self._refuse(waiting, Reject(Reason.NOT_ALLOWED, refusal or _NO_ANSWER))
            elif isinstance(found, _Member):
                self._add(found, waiting)
            else:
                self._begin(waiting, spec, {}, LOOKUP_TOKEN)

    def refuse_unanswered(self, now: Instant) -> None:
        """Refuse the processes of pods about which no operator has answered in time."""
        for pod in self.pods.expired(now):
            self._pod_answered(pod, None, "")

    def _devices_named(self, peer: PeerIdentity, visible: str) -> str:
        """Return the node's names of the devices that a process sees, up to an unknown one; empty: any.

        A container numbers its devices by itself.
        """
        gpus = self._services.gpus()
        found: list[int] = []
        for name in visible.split(",")[:GPU_LIMIT]:
            index = None if peer.is_foreign and _is_number(name.strip()) else self._device_called(name.strip())
            if index is None or index in found:
                break
            found.append(index)
        return ",".join(gpus[index].names(index)[0] for index in found)

    def _device_called(self, name: str) -> int | None:
        """Return the index of a device by an entry of CUDA_VISIBLE_DEVICES."""
        names = (name, f"{SOFT_PREFIX}{name}") if name else ()
        gpus = enumerate(self._services.gpus())
        return next((index for index, gpu in gpus if any(gpu.is_called(n, index) for n in names)), None)

    def _place_of(self, peer: PeerIdentity, message: wire.Attach, grant: Grant) -> Grant | Reject:
        """Return the grant of a tenant on the device that a process numbers as it states.

        A process that sees one device of its tenant, such as a rank of torchrun, numbers it as 0.
        """
        names = message.visible.split(",") if message.visible else []
        name = names[message.ordinal].strip() if message.ordinal < len(names) else ""
        is_own_number = peer.is_foreign and _is_number(name)
        index = None if is_own_number else self._device_called(name)
        if index is not None and index in grant.gpus:
            return grant.on(index)
        ordinal = int(name[:_NUMBER_DIGITS]) if is_own_number else message.ordinal
        if ordinal < len(grant.places):
            return grant.on(grant.places[ordinal])
        if not message.ordinal:
            return grant.on(grant.gpu)
        granted = name_gpus(grant.gpus) if grant.gpus else "no GPU"
        detail = f"the program uses its device {ordinal}, and the tenant was granted only {granted}"
        return Reject(Reason.NOT_ALLOWED, f"{detail}; request more with --gpu, --gpus or COTENANT_GPUS")

    def _attach(self, waiting: WaitingAttach, tenant: Tenant) -> None:
        """Attach a process to a tenant that has a slot, on one of its devices."""
        connection, message = waiting.connection, waiting.message
        connection.awaits_tenant = False
        with _closed_on_error(waiting.descriptor):
            grant = self._place_of(connection.identity, message, tenant.grant)
        if isinstance(grant, Reject):
            self._refuse(waiting, grant)
            return
        key = (grant.slot, grant.generation)
        processes = self._services.processes
        too_many = self._excess(connection, key, grant.gpu)
        if too_many:
            self._refuse(waiting, Reject(Reason.NOT_ALLOWED, too_many))
            return
        previous = (message.index, message.generation) if message.index >= 0 else None
        try:
            result = processes.attach(grant.gpu, key, connection.identity, waiting.descriptor, previous)
        except PeerError as error:
            self._replies.drop(connection, str(error))
            return
        except OSError as error:  # no descriptor or no memory is free
            self._replies.drop(connection, f"the node cannot take a further process now: {error.strerror}")
            return
        if isinstance(result, Reject):
            self._replies.refuse(connection, result)
            return
        connection.attached = AttachedAt(key, grant.gpu, result.index, result.generation)
        if message.gang and message.ranks > 1:
            gang = GangKey(connection.identity.account, message.gang, message.ranks)
            page = processes.join_gang(grant.gpu, result.index, gang)
            self._replies.send(connection, wire.GangPage(message.ranks), (page,))
        connection.limit_send_buffer()
        connection.pages = {page.index: None for page in processes.pages(grant.gpu) if page.index != result.index}
        environment = self.environment(tenant.name, tenant.grant, is_self_joined=self._member_of(key) is not None)
        if message.visible:
            environment.pop(_VISIBLE_DEVICES, None)
        position = (grant.slot, grant.generation, grant.gpu, result.index, result.generation, result.epoch)
        answer = wire.AttachAnswer(wire.HOOK_VERSION, *position, environment, len(tenant.grant.places))
        self._replies.send(connection, answer, result.descriptors)

    def _excess(self, connection: PeerConnection, key: TenantKey, gpu: int) -> str:
        """Return why no further process of this tenant or user may attach; empty if one may."""
        if self._services.processes.count(key, gpu) >= PROCESSES_PER_TENANT:
            return f"a tenant has at most {PROCESSES_PER_TENANT} processes on the GPU"
        account = connection.identity.account
        others = [
            other
            for other in self._replies.attached()
            if other.attached is not None and other.attached.gpu == gpu and other.identity.account == account
        ]
        return (
            f"a user has at most {PROCESSES_PER_USER} processes on a GPU" if len(others) >= PROCESSES_PER_USER else ""
        )

    def environment(self, name: str, grant: Grant, *, is_self_joined: bool) -> dict[str, str]:
        """Return the variables of a tenant's program."""
        token = self._services.tokens.of_tenant((grant.slot, grant.generation), is_self_joined=is_self_joined)
        return {**self._services.environment(grant), "COTENANT_TENANT": name, "COTENANT_TOKEN": token}

    def _refuse(self, waiting: WaitingAttach, reject: Reject) -> None:
        close_descriptor(waiting.descriptor)
        waiting.connection.awaits_tenant = False
        self._replies.refuse(waiting.connection, reject)

    # -- decisions of the state machine ------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Return whether this number is of a tenant that joined by itself."""
        return number in self._members

    def pending_specs(self, uid: int) -> list[TenantSpec]:
        """Return what a user's undecided joins ask for."""
        return [member.spec for member in self._members.values() if member.is_pending and member.uid == uid]

    def welcome(self, number: int, grant: Grant) -> None:
        """Attach the processes for which a tenant has joined; without one, the tenant leaves again."""
        member = self._members[number]
        member.tenant, member.is_pending = (grant.slot, grant.generation), False
        view = self._view(member.tenant)
        waiting, member.waiting = member.waiting, []
        for entry in waiting:
            if view is not None:
                self._attach(entry, view.tenant)
        if not self._services.processes.count(member.tenant):
            self._replies.post(PeerLost(number))

    def refuse(self, number: int, reject: Reject) -> None:
        """Refuse the processes whose tenant was not admitted."""
        member = self._members.pop(number)
        for entry in member.waiting:
            self._refuse(entry, reject)

    def signal(self, number: int, kind: SignalKind) -> None:
        """Signal the processes of a tenant that has no parent to do so."""
        tenant = self._members[number].tenant
        if tenant is not None:
            self._services.processes.signal(tenant, signal.SIGTERM if kind == "term" else signal.SIGKILL)

    def suspend(self, number: int) -> None:
        """Report that nobody can move the memory of a tenant without a parent."""
        self._replies.post(TenantSuspended(number, False, "no `cotenant run` supervises it"))

    def released(self, tenant: TenantKey) -> None:
        """Forget a tenant whose slot was released, and its processes."""
        member = self._member_of(tenant)
        if member is not None:
            del self._members[member.number]
        self._services.processes.remove(tenant)

    # -- processes that left -----------------------------------------------------------------------------------------

    def lose(self, connection: PeerConnection) -> None:
        """Handle a closed connection: its process may reconnect, or its attach is void."""
        place = connection.attached
        if place is not None:
            connection.attached = None
            self._services.processes.disconnect(place.gpu, place.index, place.generation)
        if not connection.awaits_tenant:
            return
        connection.awaits_tenant = False
        for attach in self.pods.remove(connection):
            close_descriptor(attach.descriptor)
        for member in list(self._members.values()):
            for entry in [entry for entry in member.waiting if entry.connection is connection]:
                close_descriptor(entry.descriptor)
                member.waiting.remove(entry)
                if not member.waiting and member.is_pending:
                    del self._members[member.number]
                    self._replies.post(PeerLost(member.number))

    def last_process_left(self, tenant: TenantKey) -> None:
        """Let a tenant leave that joined by itself; one with a parent stays."""
        member = self._member_of(tenant)
        if member is not None and not member.is_pending:
            self._replies.post(TenantLeft(member.number, "its last process ended"))

    # -- queries -----------------------------------------------------------------------------------------------------

    def own_tenants(self, peer: PeerIdentity) -> list[TenantKey]:
        """Return the tenants that a peer's process belongs to, by descent first."""
        tenant = self._services.processes.tenant_of(peer.pid)
        return [*([] if tenant is None else [tenant]), *self._services.processes.related(peer)]

    def _member_of(self, tenant: TenantKey) -> _Member | None:
        return next((member for member in self._members.values() if member.tenant == tenant), None)

    def _view(self, tenant: TenantKey) -> TenantView | None:
        for view in self._services.tenants():
            if (view.tenant.grant.slot, view.tenant.grant.generation) == tenant:
                return view
        return None
