"""The registry of the tenants' processes: which they are, what they publish, and how they are ended.

A process belongs to a tenant if it attached its pages through the tenant socket, if it descends from such a process or
from the one that joined for the tenant, or if it is in a container in which only this tenant has processes. The kernel
supplies all of this. No number that a tenant writes identifies a process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from cotenant.errors import PeerError
from cotenant.gate.combined_pages import combine, counters_of
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.gate.process_pages import PROCESSES
from cotenant.gate.shared_pages import check_process_pages
from cotenant.node.daemon.attached_process import AttachedProcess, RootProcess
from cotenant.node.daemon.gangs import LiveGangs
from cotenant.node.daemon.proc import ENDED, STOPPED, ProcessTree, TaskCount, container_of, has_ended, pidfd_of
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.gang import GangKey
from cotenant.node.model.peer import NO_DESCRIPTOR, PeerIdentity
from cotenant.node.ports import Attachment, PageListener, ProcessPage, TenantKey
from cotenant.runner.clock import monotonic_ns, pause, unix_ns
from cotenant.runner.live_loop import READ
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS, Instant

RECONNECT_NS: Final = 5 * SECOND_NS
"""The time in which a live process whose connection closed may attach again and keep its index."""
TENANT_PROCESSES: Final = 64
"""The maximum number of attached processes of one tenant."""
ONLINE_RESERVE: Final = 64
"""The number of indexes of a device that only processes of online tenants get."""
_GENERATION_NS: Final = (
    1 << 24
)  # a restarted node continues with later generations unless 60 processes attach per second
_GENERATIONS: Final = 1 << 32
_SEARCH_NS: Final = 700 * MILLISECOND_NS
"""After this long the next reading searches in any case: some containers see no true count of the processes."""
_STOP_LIMIT_NS: Final = SECOND_NS
"""The longest search for descendants of a tenant that is killed; the node does nothing else meanwhile."""
_STOP_LOOK_S: Final = 0.001
_DEPARTED_KEPT: Final = 64
_HIGHEST_PRIORITY: Final = -20


class DescriptorWatcher(Protocol):
    """The part of the event loop that reports the end of processes."""

    def watch(self, descriptor: int, when: int, ready: Callable[[int], None]) -> None:
        """Call `ready` whenever the descriptor is readable."""
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        ...


class LiveProcesses:
    """Attached processes by device and index, and the processes that joined for tenants."""

    def __init__(
        self,
        loop: DescriptorWatcher,
        pages: tuple[LiveGrantPages, LiveTenantTables, LiveLedgers],
        report: Callable[[str], None],
        *,
        tree: ProcessTree | None = None,
        clock: Callable[[], Instant] = monotonic_ns,
    ) -> None:
        """Begin without processes; `report` logs what an operator should know."""
        self._loop = loop
        self._grants, self._tables, self._ledgers = pages
        self._report = report
        self._tree = tree or ProcessTree()
        self._clock = clock
        self._listener: PageListener | None = None
        self._attached: dict[int, dict[int, AttachedProcess]] = {}
        self._by_tenant: dict[TenantKey, list[AttachedProcess]] = {}
        self._ordered: dict[int, list[AttachedProcess]] = {}  # by device, until its processes change
        self._tasks_seen: TaskCount | None = None
        self._search_again_ns: Instant = 0
        self._supervisors: dict[TenantKey, RootProcess] = {}
        self._remembered: dict[int, tuple[int, TenantKey]] = {}  # by number: start time and tenant of a descendant
        self._ended_counters: dict[tuple[TenantKey, int], dict[str, int | list[int]]] = {}  # by tenant and device
        self._epochs: dict[int, int] = {}
        self._gangs = LiveGangs()
        self._next_generation = unix_ns() // _GENERATION_NS
        self._own_container = container_of(self._tree.cgroup(os.getpid()))
        self.node_pids: frozenset[int] = frozenset()
        """The MPS daemon and server, which do not descend from the node."""
        self.device_holders: frozenset[int] = frozenset()
        """The processes that hold device memory according to the latest reading of the devices."""

    # ---- the listener's port -------------------------------------------------------------------------------------

    def listen(self, listener: PageListener) -> None:
        """Set the receiver of reports, before the first process attaches."""
        self._listener = listener

    def attach(
        self, gpu: int, tenant: TenantKey, peer: PeerIdentity, descriptor: int, previous: tuple[int, int] | None
    ) -> Attachment | Reject:
        """Attach a process with its pages to a tenant; see `cotenant.node.ports.Processes`."""
        memory: mmap.mmap | None = None
        process: AttachedProcess | None = None
        try:
            memory = check_process_pages(descriptor)
            if peer.pidfd == NO_DESCRIPTOR or has_ended(peer.pidfd):
                raise PeerError("the process has ended")
            # A process has one set of pages per device: after exec, or if its connection broke, it brings new ones.
            for earlier in [each for each in self.attached() if each.pid == peer.pid]:
                if earlier.gpu == gpu or earlier.tenant != tenant:
                    self._leave(earlier, is_last=False)
            chosen = self._choose_index(gpu, tenant, previous)
            if isinstance(chosen, Reject):
                return chosen
            epoch = self._epochs[gpu] = self._epochs.get(gpu, 0) + 1
            page = ProcessPage(gpu, *chosen, epoch, descriptor)
            process = AttachedProcess(tenant, peer, self._tree, page, memory)
        finally:
            if process is None:
                if memory is not None:
                    memory.close()
                os.close(descriptor)
        return self._add(process)

    def _add(self, process: AttachedProcess) -> Attachment:
        gpu, index, slot = process.gpu, process.index, process.tenant[0]
        self._attached.setdefault(gpu, {})[index] = process
        self._by_tenant.setdefault(process.tenant, []).append(process)
        self._ordered.pop(gpu, None)
        self._remembered.pop(process.pid, None)
        self._tasks_seen = None  # its descendants may all exist already
        self._loop.watch(process.pidfd, READ, lambda _: self._leave(process))
        self._ledgers.begin(gpu, index, process.generation, process.tenant, process.pid)
        if self._listener is not None:
            self._listener.page_added(process.page)
        if gpu >= 0:
            self._tables.attach(gpu, index, process.generation, slot)
        descriptors = (self._grants.handle(slot, gpu), *self._tables.handles(gpu))
        return Attachment(index, process.generation, process.epoch, descriptors)

    def _choose_index(self, gpu: int, tenant: TenantKey, previous: tuple[int, int] | None) -> tuple[int, int] | Reject:
        """Return a free index and an unused generation, the previous ones if possible, or why there is none."""
        taken = self._attached.get(gpu, {})
        if sum(process.tenant == tenant for process in taken.values()) >= TENANT_PROCESSES:
            return Reject(Reason.GPU_FULL, f"a tenant may have {TENANT_PROCESSES} processes that use the GPU at once")
        reserve = 0 if self._tables.is_online(gpu, tenant[0]) else ONLINE_RESERVE
        free = [index for index in range(PROCESSES) if index not in taken]
        if len(free) <= reserve:
            return Reject(Reason.GPU_FULL, f"GPU {gpu} has no place for a further process; try again later")
        generations = {process.generation for process in taken.values()}
        is_kept = previous is not None and previous[0] in free and 0 < previous[1] < _GENERATIONS
        if previous is not None and is_kept and previous[1] not in generations:
            return previous
        while True:
            self._next_generation += 1
            generation = self._next_generation % _GENERATIONS
            if generation and generation not in generations:
                return free[0], generation

    def join_gang(self, gpu: int, index: int, gang: GangKey) -> int:
        """Make an attached process a rank of a job until it leaves; see `cotenant.node.ports.Processes`."""
        return self._gangs.join(gang, self._attached[gpu][index].generation)

    def disconnect(self, gpu: int, index: int, generation: int) -> None:
        """Let a process whose connection closed leave when it ends, or some seconds later unless it attaches again."""
        process = self._attached.get(gpu, {}).get(index)
        if process is not None and process.generation == generation:
            process.disconnected_ns = self._clock()

    def expire(self) -> None:
        """Remove processes that live without a connection for too long; the monitor calls this periodically."""
        limit_ns = self._clock() - RECONNECT_NS
        for process in list(self.attached()):
            if process.disconnected_ns is not None and process.disconnected_ns <= limit_ns:
                self._leave(process)

    def supervise(self, tenant: TenantKey, peer: PeerIdentity) -> None:
        """Register the process that joined for a tenant; its descendants belong to the tenant."""
        if peer.pidfd == NO_DESCRIPTOR or has_ended(peer.pidfd):
            return
        before = self._supervisors.pop(tenant, None)
        if before is not None:
            os.close(before.pidfd)
        self._supervisors[tenant] = RootProcess(tenant, peer, self._tree)
        self._tasks_seen = None  # its descendants may all exist already

    def is_supervised(self, tenant: TenantKey) -> bool:
        """Return whether the process that joined for a tenant is registered."""
        return tenant in self._supervisors

    def remove(self, tenant: TenantKey) -> None:
        """Forget all processes of a tenant whose slot was released."""
        for process in self.of_tenant(tenant):
            self._leave(process, is_last=False)
        supervisor = self._supervisors.pop(tenant, None)
        if supervisor is not None:
            os.close(supervisor.pidfd)
        self._remembered = {pid: entry for pid, entry in self._remembered.items() if entry[1] != tenant}

    def keep_only(self, tenants: Iterable[TenantKey]) -> None:
        """Forget the processes of all other tenants."""
        kept = set(tenants)
        known = {process.tenant for process in self.attached()} | set(self._supervisors)
        for tenant in known - kept:
            self.remove(tenant)
        # The counters of tenants that have just left are still read once.
        departed = [place for place in self._ended_counters if place[0] not in kept]
        for place in departed[:-_DEPARTED_KEPT]:
            del self._ended_counters[place]

    def page(self, gpu: int, index: int) -> ProcessPage | None:
        """Return the present pages at an index; None if no process has it."""
        process = self._attached.get(gpu, {}).get(index)
        return None if process is None else process.page

    def pages(self, gpu: int) -> list[ProcessPage]:
        """Return the pages of all attached processes of a device, by index."""
        return [process.page for process in self.on(gpu)]

    def tenant_of(self, pid: int) -> TenantKey | None:
        """Return the tenant of a process, or None.

        The nearest ancestor that is a tenant's decides: a tenant may be started inside another one. What the node
        itself started belongs to no tenant, although `cotenant run` may have started the node.
        """
        owners = {root.pid: root.tenant for root in self._roots() if root.is_alive}
        for number, stat in self._tree.ancestors(pid):
            if number == os.getpid():
                return None
            if number in owners:
                return owners[number]
            start_ticks, tenant = self._remembered.get(number, (-1, (-1, 0)))
            if start_ticks == stat.start_ticks:
                return tenant
        return self._container_tenant(container_of(self._tree.cgroup(pid)))

    def related(self, peer: PeerIdentity) -> list[TenantKey]:
        """Return the tenants of the peer's user that have a process in its container or process group."""
        stat = self._tree.stat(peer.pid)
        group, container = 0 if stat is None else stat.group, container_of(peer.cgroup)
        found = {
            root.tenant: None
            for root in self._roots()
            if root.uid == peer.uid and ((container and root.container == container) or (group and root.group == group))
        }
        return list(found)

    def shares_container(self, tenant: TenantKey, peer: PeerIdentity) -> bool:
        """Return whether a process of the tenant is in the same container as the peer."""
        container = container_of(peer.cgroup)
        return bool(container) and any(root.container == container for root in self._roots() if root.tenant == tenant)

    def count(self, tenant: TenantKey, gpu: int | None = None) -> int:
        """Return how many processes of a tenant are attached, on one device or summed over all."""
        attached = self._by_tenant.get(tenant, ())
        return len(attached) if gpu is None else sum(process.gpu == gpu for process in attached)

    def signal(self, tenant: TenantKey, number: int) -> None:
        """Send a signal to the tenant's attached processes and their descendants."""
        roots = {process.pid: process for process in self.of_tenant(tenant)}
        for process in roots.values():
            if not _send(process.pidfd, number):
                self._report_foreign(process.pid, tenant)
        for pid in self._tree.descendants(roots):
            self._signal_own(pid, tenant, number)

    # ---- the monitors --------------------------------------------------------------------------------------------

    def attached(self) -> Iterator[AttachedProcess]:
        """Yield all attached processes."""
        for processes in self._attached.values():
            yield from processes.values()

    def on(self, gpu: int) -> list[AttachedProcess]:
        """Return the attached processes of a device, by index; the same list until they change."""
        ordered = self._ordered.get(gpu)
        if ordered is None:
            processes = self._attached.get(gpu, {})
            ordered = self._ordered[gpu] = [processes[index] for index in sorted(processes)]
        return ordered

    def of_tenant(self, tenant: TenantKey) -> list[AttachedProcess]:
        """Return the attached processes of a tenant; one that uses several devices is attached on each."""
        return list(self._by_tenant.get(tenant, ()))

    def ended_counters(self, tenant: TenantKey, gpu: int) -> list[dict[str, int | list[int]]]:
        """Return the sums of the counters of a tenant's ended processes on a device, if there are any."""
        counters = self._ended_counters.get((tenant, gpu))
        return [] if counters is None else [counters]

    def own_numbers(self, tenant: TenantKey) -> list[int]:
        """Return the numbers of a tenant's attached processes in their own pid namespaces."""
        pids = dict.fromkeys(process.pid for process in self.of_tenant(tenant))
        return [self._tree.own_number(pid) for pid in pids]

    def is_stopped(self, tenant: TenantKey) -> bool:
        """Return whether an attached process of a tenant is stopped or traced."""
        stats = (self._tree.stat(process.pid) for process in self.of_tenant(tenant))
        return any(stat is not None and stat.state in STOPPED for stat in stats)

    def is_present(self, pid: int) -> bool:
        """Return whether a process of this number lives in the node's pid namespace."""
        stat = self._tree.stat(pid)
        return stat is not None and stat.state not in ENDED

    def is_of_node(self, pid: int) -> bool:
        """Return whether the node started a process, or supervises it as its MPS server."""
        return pid in self.node_pids or any(number == os.getpid() for number, _ in self._tree.ancestors(pid))

    def remember_descendants(self) -> None:
        """Remember which processes descend from tenants' processes: a parent that ends leaves them to another one.

        Without a new process since the last time, there is none to remember.
        """
        tasks, now = self._tree.task_count(), self._clock()
        if tasks is not None and tasks == self._tasks_seen and now < self._search_again_ns:
            return
        self._tasks_seen, self._search_again_ns = tasks, now + _SEARCH_NS
        kept = {}
        for pid, (start_ticks, tenant) in self._remembered.items():
            stat = self._tree.stat(pid)
            if stat is not None and stat.start_ticks == start_ticks:
                kept[pid] = (start_ticks, tenant)
        self._remembered = kept
        owners = {root.pid: root.tenant for root in self._roots() if root.is_alive}
        for pid in self._tree.descendants([*owners, *kept]):
            if pid in owners or pid in kept:
                continue
            stat = self._tree.stat(pid)
            owner = self.tenant_of(pid)
            if stat is not None and owner is not None:
                kept[pid] = (stat.start_ticks, owner)

    # ---- ending processes ----------------------------------------------------------------------------------------

    def kill(self, tenant: TenantKey, *, keep_supervisor: bool = False) -> None:
        """Kill all processes of a tenant; with `keep_supervisor`, not the one that joined for it.

        The supervisor is killed in any case if it uses the device. All processes are stopped first, from parents to
        children, so that none starts another one meanwhile.
        """
        supervisor = self._supervisors.get(tenant)
        roots: list[RootProcess] = [*{process.pid: process for process in self.of_tenant(tenant)}.values()]
        if supervisor is not None:
            is_user = supervisor.pid in self.device_holders or any(root.pid == supervisor.pid for root in roots)
            if is_user or not keep_supervisor:
                roots.append(supervisor)
        stopped: dict[int, int] = {}  # by number: a pidfd of a process that was sent SIGSTOP
        try:
            for root in roots:
                stopped[root.pid] = os.dup(root.pidfd)
                _send(root.pidfd, signal.SIGSTOP)
            if supervisor is not None and supervisor not in roots:
                self._stop_children(tenant, supervisor.pid, stopped)
            self._stop_all(tenant, stopped)
            refused = [pid for pid, pidfd in stopped.items() if not _send(pidfd, signal.SIGKILL)]
            if refused:
                self._report(f"cannot end all processes of the tenant in slot {tenant[0]}: one belongs to another user")
        except OSError as error:
            self._report(f"cannot end all processes of the tenant in slot {tenant[0]}: {error.strerror}")
        finally:
            for pidfd in stopped.values():
                os.close(pidfd)
        self._kill_container(tenant)

    def _stop_all(self, tenant: TenantKey, stopped: dict[int, int]) -> None:
        """Stop the descendants of stopped processes and other processes of the tenant.

        A process that was sent SIGSTOP starts no further fork(). It may be inside one, so its children are complete
        only when it has stopped.
        """
        end_ns = monotonic_ns() + _STOP_LIMIT_NS
        self._stop_unrelated(tenant, stopped)
        running = list(stopped)
        while running and monotonic_ns() < end_ns:
            with _high_priority():
                for pid in running:  # grows
                    running += self._stop_children(tenant, pid, stopped)
                running += self._stop_unrelated(tenant, stopped)
            has_stopped = [pid for pid in running if self._tree.is_stopped(pid)]
            running = [pid for pid in running if pid not in has_stopped]
            running += [child for pid in has_stopped for child in self._stop_children(tenant, pid, stopped)]
            if running:
                pause(_STOP_LOOK_S)

    def _stop_children(self, tenant: TenantKey, parent: int, stopped: dict[int, int]) -> list[int]:
        """Send SIGSTOP to the children of a tenant's process, except those that joined for another tenant."""
        roots = {root.pid: root.tenant for root in self._roots()}
        supervisor = self._supervisors.get(tenant)
        spared = (os.getpid(), -1 if supervisor is None else supervisor.pid)
        found = []
        for child in self._tree.children(parent):
            if child in stopped or child in spared or roots.get(child, tenant) != tenant:
                continue
            before = self._tree.stat(child)
            pidfd = None if before is None or before.parent != parent else pidfd_of(child)
            if before is None or pidfd is None:
                continue
            after = self._tree.stat(child)
            if after is None or (after.parent, after.start_ticks) != (parent, before.start_ticks):
                os.close(pidfd)
                continue
            stopped[child] = pidfd
            found.append(child)
            _send(pidfd, signal.SIGSTOP)
        return found

    def _stop_unrelated(self, tenant: TenantKey, stopped: dict[int, int]) -> list[int]:
        """Send SIGSTOP to processes whose parents have ended.

        The node has seen them as descendants before, or they are in a container of this tenant alone.
        """
        supervisor = self._supervisors.get(tenant)
        remembered = [pid for pid, (_, owner) in self._remembered.items() if owner == tenant]
        container = self._sole_container(tenant)
        contained = self._tree.processes_in(container) if container else []
        found = []
        for pid in dict.fromkeys([*remembered, *contained]):
            if pid in stopped or (supervisor is not None and pid == supervisor.pid):
                continue
            pidfd = self._open_own(pid, tenant)
            if pidfd is not None:
                stopped[pid] = pidfd
                found.append(pid)
                _send(pidfd, signal.SIGSTOP)
        return found

    def _open_own(self, pid: int, tenant: TenantKey) -> int | None:
        """Return a pidfd of a process if it is the tenant's, also after the descriptor was opened."""
        before = self._tree.stat(pid)
        pidfd = None if before is None or pid == os.getpid() else pidfd_of(pid)
        if before is None or pidfd is None:
            return None
        after = self._tree.stat(pid)
        if after is not None and after.start_ticks == before.start_ticks and self.tenant_of(pid) == tenant:
            return pidfd
        os.close(pidfd)
        return None

    def _signal_own(self, pid: int, tenant: TenantKey, number: int) -> None:
        pidfd = self._open_own(pid, tenant)
        if pidfd is not None:
            if not _send(pidfd, number):
                self._report_foreign(pid, tenant)
            os.close(pidfd)

    def _report_foreign(self, pid: int, tenant: TenantKey) -> None:
        self._report(f"cannot signal process {pid} of the tenant in slot {tenant[0]}: it is another user's")

    def _kill_container(self, tenant: TenantKey) -> None:
        """Kill what is left in a container in which only this tenant has processes, all at once."""
        container = self._sole_container(tenant)
        if container:
            with contextlib.suppress(OSError):  # older kernels, or a cgroup that the node may not write
                (self._tree.cgroups / container.lstrip("/") / "cgroup.kill").write_text("1")

    # ---- containers ----------------------------------------------------------------------------------------------

    def _container_tenant(self, container: str) -> TenantKey | None:
        """Return the only tenant that has processes in a container; None if there is none, or several."""
        if not container or container == self._own_container:
            return None
        tenants = {root.tenant for root in self._roots() if root.container == container}
        return tenants.pop() if len(tenants) == 1 else None

    def _sole_container(self, tenant: TenantKey) -> str:
        """Return the container in which only this tenant has processes; empty if there is none."""
        containers = {root.container for root in self._roots() if root.tenant == tenant}
        return next((name for name in sorted(containers) if self._container_tenant(name) == tenant), "")

    def container(self, tenant: TenantKey) -> str:
        """Return the cgroup of the container in which only this tenant has processes; empty if there is none."""
        return self._sole_container(tenant)

    # ---- departures ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all descriptors and mappings; the processes keep theirs."""
        for process in list(self.attached()):
            self._forget(process)
        self._attached.clear()
        self._by_tenant.clear()
        self._ordered.clear()
        for supervisor in self._supervisors.values():
            os.close(supervisor.pidfd)
        self._supervisors.clear()
        self._gangs.close()

    def _leave(self, process: AttachedProcess, *, is_last: bool = True) -> None:
        """Remove a process: what it held is charged to its tenant's account first, then its entry is removed."""
        if self._attached.get(process.gpu, {}).get(process.index) is not process:
            return
        page = process.gate_page()
        if page:
            place = process.tenant, process.gpu
            ended = [*self.ended_counters(*place), counters_of(page)]
            self._ended_counters[place] = combine(ended, process.tenant[1])
        self._ledgers.end(process.gpu, process.index, process.copy())
        self._gangs.leave(process.generation)
        if process.gpu >= 0:
            self._tables.detach(process.gpu, process.index)
        del self._attached[process.gpu][process.index]
        self._ordered.pop(process.gpu, None)
        self._by_tenant[process.tenant].remove(process)
        if not self._by_tenant[process.tenant]:
            del self._by_tenant[process.tenant]
        self._forget(process)
        if is_last and self._listener is not None and not self.count(process.tenant):
            self._listener.last_process_left(process.tenant)

    def _forget(self, process: AttachedProcess) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._loop.forget(process.pidfd)
        os.close(process.pidfd)
        os.close(process.descriptor)
        process.memory.close()

    def _roots(self) -> Iterator[RootProcess]:
        yield from self.attached()
        yield from self._supervisors.values()


@contextlib.contextmanager
def _high_priority() -> Iterator[None]:
    """Raise the priority of this thread where that is permitted: processes that only start others must not win."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST_PRIORITY)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def _send(pidfd: int, number: int) -> bool:
    """Send a signal to a process, which may have ended; return False if this user may not signal it."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True
