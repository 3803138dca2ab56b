"""A registry of processes for tests of the listener: it believes what the test says about descent and containers."""

import os
from typing import Any

from cotenant.errors import PeerError
from cotenant.node.model.admission import Reject
from cotenant.node.model.gang import GangKey
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.ports import Attachment, PageListener, ProcessPage, TenantKey


class FakeProcesses:
    """Attaches every process at the next index; pages may be any descriptor."""

    def __init__(self) -> None:
        self.listener: PageListener | None = None
        self.attached: dict[tuple[int, int], tuple[TenantKey, ProcessPage, PeerIdentity]] = {}
        self.parents: dict[int, TenantKey] = {}
        """The tenants of processes by descent."""
        self.near: list[TenantKey] = []
        """The tenants that every peer is related to."""
        self.containers: list[TenantKey] = []
        """The tenants whose container every peer shares."""
        self.supervisors: dict[TenantKey, int] = {}
        self.signals: list[tuple[TenantKey, int]] = []
        self.disconnected: list[tuple[int, int, int]] = []
        self.gangs: dict[tuple[int, int], GangKey] = {}
        self.refusal: Reject | None = None
        self.is_valid = True
        self.grant_file = os.open(os.devnull, os.O_RDONLY)
        self._next = 0

    def close(self) -> None:
        for key in list(self.attached):
            self._forget(key)
        os.close(self.grant_file)

    def listen(self, listener: PageListener) -> None:
        self.listener = listener

    def attach(
        self, gpu: int, tenant: TenantKey, peer: PeerIdentity, descriptor: int, previous: tuple[int, int] | None
    ) -> Attachment | Reject:
        if not self.is_valid or self.refusal is not None:
            os.close(descriptor)
            if self.refusal is not None:
                return self.refusal
            raise PeerError("the pages are not sealed")
        if previous is not None:
            self._forget((gpu, previous[0]))
        index, generation = previous if previous is not None else (self._next, 100 + self._next)
        self._next += 1
        page = ProcessPage(gpu, index, generation, self._next, descriptor)
        self.attached[gpu, index] = (tenant, page, peer)
        assert self.listener is not None
        self.listener.page_added(page)
        handles = (self.grant_file,) if gpu < 0 else (self.grant_file,) * 3
        return Attachment(index, generation, self._next, handles)

    def join_gang(self, gpu: int, index: int, gang: GangKey) -> int:
        self.gangs[gpu, index] = gang
        return self.grant_file

    def leave(self, gpu: int, index: int) -> None:
        """End a process."""
        tenant = self.attached[gpu, index][0]
        self._forget((gpu, index))
        if not self.count(tenant):
            assert self.listener is not None
            self.listener.last_process_left(tenant)

    def disconnect(self, gpu: int, index: int, generation: int) -> None:
        self.disconnected.append((gpu, index, generation))

    def supervise(self, tenant: TenantKey, peer: PeerIdentity) -> None:
        self.supervisors[tenant] = peer.pid

    def remove(self, tenant: TenantKey) -> None:
        self.supervisors.pop(tenant, None)
        for key in [key for key, entry in self.attached.items() if entry[0] == tenant]:
            self._forget(key)

    def page(self, gpu: int, index: int) -> ProcessPage | None:
        entry: Any = self.attached.get((gpu, index))
        return None if entry is None else entry[1]

    def pages(self, gpu: int) -> list[ProcessPage]:
        return [entry[1] for (device, _), entry in sorted(self.attached.items()) if device == gpu]

    def tenant_of(self, pid: int) -> TenantKey | None:
        return self.parents.get(pid)

    def related(self, peer: PeerIdentity) -> list[TenantKey]:
        del peer
        return self.near

    def shares_container(self, tenant: TenantKey, peer: PeerIdentity) -> bool:
        del peer
        return tenant in self.containers

    def count(self, tenant: TenantKey, gpu: int | None = None) -> int:
        return sum(entry[0] == tenant and gpu in (None, key[0]) for key, entry in self.attached.items())

    def signal(self, tenant: TenantKey, number: int) -> None:
        self.signals.append((tenant, number))

    def _forget(self, key: tuple[int, int]) -> None:
        entry = self.attached.pop(key, None)
        if entry is not None:
            os.close(entry[1].descriptor)


class RecordingPageListener:
    """Records what a registry of processes reports."""

    def __init__(self) -> None:
        self.pages: list[ProcessPage] = []
        self.left: list[TenantKey] = []

    def page_added(self, page: ProcessPage) -> None:
        self.pages.append(page)

    def last_process_left(self, tenant: TenantKey) -> None:
        self.left.append(tenant)
