"""Attaches processes to tenants: finds the tenant of a process, or makes it join as a new one.

A tenant whose processes joined by themselves has no parent process and no connection of its own. The state machine
knows it by a number that belongs to no connection (`_Member.number`), so it stays while its processes come and go.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.errors import ConfigError, PeerError
from cotenant.gate.grant import Grant
from cotenant.node import wire
from cotenant.node.config.grant_fields import TOKEN_FIELD, merge_fields, spec_of_fields
from cotenant.node.daemon.access import Access
from cotenant.node.daemon.connection import AttachedAt, PeerConnection, close_descriptor
from cotenant.node.daemon.tokens import Tokens
from cotenant.node.model.action import SignalKind
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.event import Event, PeerLost, TenantJoined, TenantLeft, TenantResumed, TenantSuspended
from cotenant.node.model.gpu import SOFT_PREFIX, Gpu
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.tenant import COMMAND_LIMIT, Tenant, TenantSpec, TenantView
from cotenant.node.ports import Processes, TenantKey
from cotenant.units.instant import Instant

PROCESSES_PER_TENANT: Final = 64
PROCESSES_PER_USER: Final = 192
"""Of the 256 processes of a device, so that one user cannot keep out all others."""
_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"


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


class _Waiting(NamedTuple):
    """An attach that waits until its tenant has joined."""

    connection: PeerConnection
    message: wire.Attach
    descriptor: int


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
        self.waiting: list[_Waiting] = []

    def may_take(self, peer: PeerIdentity, fields: Mapping[str, str]) -> bool:
        """Return whether a process that the registry does not know yet belongs to this tenant, which joins now."""
        is_near = bool(self.cgroup and self.cgroup == peer.cgroup) or self.group == _process_group(peer.pid) > 0
        return self.is_pending and self.uid == peer.uid and self.fields == fields and is_near


def _process_group(pid: int) -> int:
    try:
        return os.getpgid(pid) if pid > 0 else 0
    except OSError:
        return 0


class Attaching:
    """Handles the messages of hooks, and the tenants that joined by themselves."""

    def __init__(self, services: NodeServices, replies: Replies) -> None:
        """Begin without tenants that joined by themselves."""
        self._services = services
        self._replies = replies
        self._members: dict[int, _Member] = {}

    # -- an attach -------------------------------------------------------------------------------------------------

    def handle(self, connection: PeerConnection, message: wire.Attach, descriptor: int) -> None:
        """Attach a process; it owns the descriptor of its pages from now on."""
        waiting = _Waiting(connection, message, descriptor)
        try:
            fields = merge_fields(message.fields, message.grant)
            token = message.token or fields.get(TOKEN_FIELD, "")
            fields.pop(TOKEN_FIELD, None)
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
        return self._member_or_view(view, peer, is_self_joined=parsed.is_self_joined)

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

    def _add(self, member: _Member, waiting: _Waiting) -> None:
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

    def _join(self, waiting: _Waiting, fields: Mapping[str, str], token: str) -> None:
        """Make a process join as a new tenant."""
        peer, message = waiting.connection.identity, waiting.message
        is_known = bool(token) and self._services.tokens.read(token) is not None  # of a tenant that has left
        spec = self._services.tokens.take(token, self._replies.now())
        if token and not is_known and spec is None:
            detail = "COTENANT_TOKEN is not valid: it was used, has expired, or the node restarted; ask for another"
            self._refuse(waiting, Reject(Reason.NOT_ALLOWED, detail))
            return
        if spec is None:
            spec = spec_of_fields(fields, message.command, self._device_named(peer, message.visible))
            objection = self._replies.objection(peer, spec)
            if objection is not None:
                self._refuse(waiting, objection)
                return
        elif not spec.command:
            spec = msgspec.structs.replace(spec, command=message.command[:COMMAND_LIMIT])
        member = _Member(self._replies.next_number(), peer, spec, fields)
        member.token = token
        self._members[member.number] = member
        member.waiting.append(waiting)
        waiting.connection.awaits_tenant = True
        self._services.on_join(spec)
        self._replies.post(TenantJoined(member.number, peer.pid, peer.uid, spec))

    def _device_named(self, peer: PeerIdentity, visible: str) -> str:
        """Return the node's name of the device that a process sees first; empty: any.

        A container numbers its devices by itself.
        """
        name = visible.split(",", maxsplit=1)[0].strip()
        if not name or (peer.is_foreign and name.isdigit()):
            return ""
        names = (name, f"{SOFT_PREFIX}{name}")
        gpus = enumerate(self._services.gpus())
        return next((gpu.names(index)[0] for index, gpu in gpus if any(gpu.is_called(n, index) for n in names)), "")

    def _attach(self, waiting: _Waiting, tenant: Tenant) -> None:
        """Attach a process to a tenant that has a slot."""
        connection, message, grant = waiting.connection, waiting.message, tenant.grant
        connection.awaits_tenant = False
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
        if isinstance(result, Reject):
            self._replies.refuse(connection, result)
            return
        connection.attached = AttachedAt(key, grant.gpu, result.index, result.generation)
        connection.limit_send_buffer()
        connection.pages = {page.index: None for page in processes.pages(grant.gpu) if page.index != result.index}
        environment = self.environment(tenant.name, grant, is_self_joined=self._member_of(key) is not None)
        if message.visible:
            environment.pop(_VISIBLE_DEVICES, None)
        position = (grant.slot, grant.generation, grant.gpu, result.index, result.generation, result.epoch)
        self._replies.send(connection, wire.AttachAnswer(wire.VERSION, *position, environment), result.descriptors)

    def _excess(self, connection: PeerConnection, key: TenantKey, gpu: int) -> str:
        """Return why no further process of this tenant or user may attach; empty if one may."""
        if self._services.processes.count(key) >= PROCESSES_PER_TENANT:
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

    def _refuse(self, waiting: _Waiting, reject: Reject) -> None:
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
