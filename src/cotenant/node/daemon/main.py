"""The node daemon: recovers from the journal, opens its socket, and runs until it is stopped."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence

import msgspec

from cotenant import __version__
from cotenant.errors import ConfigError, InvariantError
from cotenant.gate.gate_file import LiveTenantTables
from cotenant.gate.grant_file import LiveGrantPages
from cotenant.node import wire
from cotenant.node.config.file import Config
from cotenant.node.daemon.discovery import GpuDiscovery
from cotenant.node.daemon.listener import LiveListener
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics.http import CONNECTIONS
from cotenant.node.daemon.monitoring import Monitoring
from cotenant.node.daemon.observability import Observability
from cotenant.node.directories import Directories, group_id_of, listen, make_directory, restrict_directory, take_lock
from cotenant.node.host import NodeEffects, NodeHost, NodePorts, same_promises
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.action import NO_PEER
from cotenant.node.model.event import Event, GpusFound, NodeRestored, NodeStarted, NodeStopping, TimerFired
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.runner.clock import LiveClock, load_clock, unix_ns
from cotenant.runner.host import Divergence, replay
from cotenant.runner.journal_file import FileJournal, Recovery
from cotenant.runner.live_loop import LiveLoop, stop_on_signals
from cotenant.runner.process import name_process
from cotenant.softgpu.commands import home
from cotenant.softgpu.manage import MAX_GPUS
from cotenant.units.instant import NEVER

_SPARE_CONNECTIONS = 256
_MIN_SPARE_CONNECTIONS = 8
_OWN_DESCRIPTORS = 32 + CONNECTIONS


def serve_node(config: Config, directories: Directories, log: NodeLog) -> None:
    """Run the node of these directories until it is stopped."""
    report = log.report
    observability = Observability(config.node, log)
    group_id = group_id_of(config.node.group)
    locks = _lock_directories(directories, group_id)
    name_process("cotenant-node")
    pages = LiveGrantPages(directories.pages)
    gates = LiveTenantTables(directories.pages, config.node.slots)
    machine, clock = _recover(directories, pages, report)
    journal = FileJournal(directories.journal, config.node.journal_limit)
    loop: LiveLoop[Event] = LiveLoop(clock, TimerFired())
    discovery = GpuDiscovery(home(directories), os.environ) if config.node.find == "yes" and not config.gpu else None
    gpus = tuple(gpu.gpu() for gpu in config.gpu)
    if discovery is not None:
        # A device with tenants keeps its index, even if it is missing now.
        gpus = discovery.update([gpu for gpu in machine.settings.gpus if gpu.called] if machine.tenants() else [])

    def tenant_list() -> wire.TenantList:
        return _tenant_list(machine, clock, loop)

    def find_gpus(spec: TenantSpec) -> None:
        known = machine.settings.gpus
        is_known = machine.registry.device_called(spec.gpu) is not None if spec.gpu else bool(known)
        new = () if discovery is None or is_known else discovery.update(known)[len(known) :]
        if new:
            loop.post(GpusFound(new))

    connections = _allow_descriptors(config.node.slots, len(gpus) if discovery is None else max(len(gpus), MAX_GPUS))
    monitoring = Monitoring(config, directories, machine, loop, clock, gates, report)
    listener = listen(directories.socket, group_id)
    server = LiveListener(loop, clock, listener, tenant_list, connections, find_gpus, monitoring.environment)
    ports = NodePorts(server, pages, gates, monitoring.ledgers, monitoring.enforcer())
    observer = observability.open(machine, loop, clock, journal, (gates, monitoring.ledgers))
    loop.bind(NodeHost(machine, NodeEffects(ports, loop.stop).effects(), journal, observer))
    stop_on_signals(loop, lambda why: loop.post(NodeStopping(why)))
    settings = config.node.settings(gpus, config.protect.limits(), config.control.limits())
    loop.post(NodeStarted(settings, __version__, unix_ns()))
    views = machine.tenants()
    pages.keep_only([view.tenant.grant.slot for view in views])
    gates.keep_only([*range(len(gpus)), *(view.tenant.grant.gpu for view in views)])
    report(_start_message(directories, gpus))
    monitoring.begin(observer.record_sample)
    try:
        loop.run()
    finally:
        monitoring.close()
        observability.close()
        server.close()
        pages.close()
        gates.close()
        journal.close()
        directories.socket.unlink(missing_ok=True)
        for lock in locks:
            os.close(lock)
    report("node stopped")


def _start_message(directories: Directories, gpus: Sequence[Gpu]) -> str:
    """Return the log line of the start: the socket and the devices."""
    return f"serving {directories.socket} with {', '.join(gpu.name for gpu in gpus) or 'no GPU'}"


def _lock_directories(directories: Directories, group_id: int) -> list[int]:
    """Create the directories and lock them while the returned descriptors are open.

    Two nodes with different runtime directories may still share a journal, for example if XDG_RUNTIME_DIR is set in one
    shell only; so there are two locks.
    """
    make_directory(directories.runtime, "directories.runtime")
    make_directory(directories.state, "directories.state")
    locks = [take_lock(directories.lock), take_lock(directories.journal_lock)]
    restrict_directory(directories.state, "directories.state")
    restrict_directory(directories.runtime, "directories.runtime", group_id=group_id)
    return locks


def _recover(
    directories: Directories, pages: LiveGrantPages, report: Callable[[str], None]
) -> tuple[NodeMachine, LiveClock]:
    """Return the state machine in the state that the journal records, and the clock that continues it.

    A journal that does not replay with this version is renamed and not used; of a damaged journal the readable part is
    used. In both cases the grant pages hold the generations, so that no (slot, generation) is granted twice.
    """
    recovery = Recovery(directories.journal, NodeJournalReader)
    machine = NodeMachine()
    is_replayed = True
    try:
        replay(machine, recovery.turns(), same_promises)
        why = recovery.damage
    except (Divergence, InvariantError) as error:
        why = f"does not replay with this version ({error}); tenants will join again"
        is_replayed = False
    generations = pages.generations()
    if not why and not directories.journal.exists() and generations:
        why = "is gone; tenants will join again"
    if not why:
        notice = recovery.truncate_torn_tail()
    else:
        head = _journal_head(machine.snapshot(), generations, is_replayed=is_replayed)
        notice = recovery.restart_from(head, why)
        machine = NodeMachine()
        machine.handle(head, now=recovery.last_instant)
    if notice:
        report(notice)
    return machine, load_clock(directories.clock, recovery.last_instant)


def _journal_head(recovered: NodeRestored, page_generations: dict[int, int], *, is_replayed: bool) -> NodeRestored:
    """Return the head of a new journal: the recovered state without tenants whose pages show a later generation."""
    limit = max(len(recovered.generations), *(slot + 1 for slot in page_generations), 0)
    before = [*recovered.generations, *([0] * (limit - len(recovered.generations)))]
    generations = tuple(max(generation, page_generations.get(slot, 0)) for slot, generation in enumerate(before))
    tenants = tuple(
        (NO_PEER, tenant)
        for _, tenant in recovered.tenants
        if is_replayed and generations[tenant.grant.slot] == tenant.grant.generation
    )
    return msgspec.structs.replace(
        recovered, generations=generations, tenants=tenants, disconnected_until_ns=0 if tenants else NEVER
    )


def _tenant_list(machine: NodeMachine, clock: LiveClock, loop: LiveLoop[Event]) -> wire.TenantList:
    return wire.TenantList(
        version=wire.VERSION,
        node_version=__version__,
        pid=os.getpid(),
        tenants=machine.tenants(),
        departed=list(machine.registry.departed),
        now_ns=clock.now(),
        turns=machine.turn,
        slots=machine.settings.slots,
        gpus=list(machine.settings.gpus),
        turn_ns=loop.turn_ns.histogram(),
        rules=machine.rules,
        devices=machine.watches(),
        setpoints=list(machine.registry.tables.setpoints.values()),
    )


def _allow_descriptors(slots: int, gpus: int) -> int:
    """Return the limit of connections, after raising the limit of open files as far as allowed.

    A slot needs one descriptor for its tenant, two for its page and one pidfd; a device needs three for its gate and
    three for its ledger, since a mapping holds one. Connections must never use up the descriptors of pages.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = 4 * slots + 6 * gpus + _OWN_DESCRIPTORS
    wanted = reserved + _SPARE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    spare = _SPARE_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - reserved
    if spare < _MIN_SPARE_CONNECTIONS:
        limit = reserved + _MIN_SPARE_CONNECTIONS
        remedy = f"needs {limit} open files and {hard} are allowed; choose fewer, or raise the limit (ulimit -Hn)"
        raise ConfigError("node.slots", slots, remedy)
    return slots + min(spare, _SPARE_CONNECTIONS)
