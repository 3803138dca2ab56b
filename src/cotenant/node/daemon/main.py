"""The node daemon: recovers from the journal, opens its socket, and runs until it is stopped."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence

import msgspec

from cotenant import __version__
from cotenant.errors import ConfigError, InvariantError
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_tables import LiveTenantTables
from cotenant.node import wire
from cotenant.node.config.file import Config
from cotenant.node.daemon.access import Access
from cotenant.node.daemon.activity import read_activity
from cotenant.node.daemon.attaching import NodeServices
from cotenant.node.daemon.discovery import GpuDiscovery
from cotenant.node.daemon.listener import OPERATORS_LIMIT, LiveListener
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics.http import CONNECTIONS
from cotenant.node.daemon.monitoring import Monitoring
from cotenant.node.daemon.observability import Observability
from cotenant.node.daemon.service import ConfigSource, NodeGuard
from cotenant.node.daemon.tokens import Tokens, load_key
from cotenant.node.directories import Directories
from cotenant.node.host import NodeEffects, NodePorts, same_promises
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.action import NO_PEER
from cotenant.node.model.event import SLOTS_LIMIT, Event, GpusFound, NodeRestored, NodeStarted, TimerFired
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import OnBypass
from cotenant.node.model.tenant import TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.runner.clock import LiveClock, load_clock, unix_ns
from cotenant.runner.host import Divergence, replay
from cotenant.runner.journal_file import FileJournal, Recovery
from cotenant.runner.live_loop import LiveLoop
from cotenant.runner.process import name_process, protect_process
from cotenant.softgpu.commands import home
from cotenant.softgpu.manage import MAX_GPUS
from cotenant.units.instant import NEVER, SECOND_NS

_SPARE_CONNECTIONS = 512
_MIN_SPARE_CONNECTIONS = 8
_CONNECTION_DESCRIPTORS = 5
_OWN_DESCRIPTORS = 32 + CONNECTIONS
_LOST_GENERATIONS = 1 << 20
"""More than the turns of a journal can grant of one slot."""


def serve_node(config: Config, directories: Directories, log: NodeLog, source: ConfigSource | None = None) -> None:
    """Run the node of these directories until it is stopped; `source` lets it read its config again."""
    report = log.report
    observability = Observability(config.node, log)
    access = Access(config.operators, config.limits, os.geteuid())
    pages, gates = LiveGrantPages(), LiveTenantTables()
    guard = NodeGuard(config, source, directories, log, access, pages.reserve)
    name_process("cotenant-node")
    protect_process()
    machine, clock = _recover(directories, report)
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
        is_known = bool(machine.registry.devices_named(spec)) if spec.gpu else len(known) >= spec.gpu_count
        new = () if discovery is None or is_known else discovery.update(known)[len(known) :]
        if new:
            loop.post(GpusFound(new))

    connections = _allow_descriptors(config.node.slots, len(gpus) if discovery is None else max(len(gpus), MAX_GPUS))
    monitoring = Monitoring(config, directories, machine, loop, clock, (pages, gates), report)
    services = NodeServices(
        tenants=machine.tenants,
        gpus=lambda: machine.settings.gpus,
        tenant_list=tenant_list,
        activity=lambda: read_activity(monitoring.pages, monitoring.ledgers, len(machine.settings.gpus)),
        environment=monitoring.environment,
        on_join=find_gpus,
        processes=monitoring.processes,
        access=access,
        tokens=Tokens(load_key(directories.token_key), directories.revoked_tokens),
        do_pods_need_grant=config.node.pods == "granted",
    )
    server = LiveListener(loop, clock, guard.listen(), services, connections)
    ports = NodePorts(server, pages, gates, monitoring.ledgers, monitoring.enforcer())
    observer = observability.open(machine, loop, clock, journal, (monitoring.pages, monitoring.ledgers))

    effects = NodeEffects(ports, loop.stop).effects()
    guard.begin(loop, clock, machine, effects, journal, server, observer, monitoring.is_mps_ready)
    limits, control = config.protect.limits(), config.control.limits()
    settings = config.node.settings(gpus, limits, control, OnBypass(config.protect.on_bypass))
    loop.post(NodeStarted(settings, __version__, unix_ns()))
    report(_start_message(directories, gpus))
    monitoring.begin(observer.record_sample, gpus)
    guard.rediscover(loop, machine, discovery)
    guard.ready()
    try:
        loop.run()
    finally:
        guard.stopping()
        monitoring.close()
        observability.close()
        server.close()
        pages.close()
        gates.close()
        guard.close(clock.now())
        journal.close()
    report("node stopped")


def _start_message(directories: Directories, gpus: Sequence[Gpu]) -> str:
    """Return the log line of the start: the socket and the devices."""
    return f"serving {directories.tenant_socket} with {', '.join(gpu.name for gpu in gpus) or 'no GPU'}"


def _recover(directories: Directories, report: Callable[[str], None]) -> tuple[NodeMachine, LiveClock]:
    """Return the state machine in the state that the journal records, and the clock that continues it.

    A journal that does not replay with this version is renamed and not used; of a damaged journal the readable part is
    used. The lost part may have granted later generations, so the next ones begin far above. A journal that does not
    exist was lost if a node ran before: the file of its clock tells.
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
    if not why and not directories.journal.exists() and directories.clock.exists():
        why = "is gone; tenants will join again"
    if not why:
        notice = recovery.truncate_torn_tail()
    else:
        head = _journal_head(machine.snapshot(), is_replayed=is_replayed)
        notice = recovery.restart_from(head, why)
        machine = NodeMachine()
        machine.handle(head, now=recovery.last_instant)
    if notice:
        report(notice)
    return machine, load_clock(directories.clock, recovery.last_instant)


def _journal_head(recovered: NodeRestored, *, is_replayed: bool) -> NodeRestored:
    """Return the head of a new journal: the recovered state, with generations that no lost turn can have granted.

    Slots that the recovered part does not name begin with the seconds since 1970, which also exceed the generations
    after an earlier loss of the whole journal.
    """
    tenants = tuple((NO_PEER, tenant) for _, tenant in recovered.tenants if is_replayed)
    held = {tenant.grant.slot for _, tenant in tenants}
    generations = [
        generation if slot in held else generation + _LOST_GENERATIONS
        for slot, generation in enumerate(recovered.generations)
    ]
    generations += [unix_ns() // SECOND_NS] * (SLOTS_LIMIT - len(generations))
    return msgspec.structs.replace(
        recovered, generations=tuple(generations), tenants=tenants, disconnected_until_ns=0 if tenants else NEVER
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

    A slot needs one descriptor for its tenant, two for its page and one pidfd; a device needs four for its pages, since
    a mapping holds one. A connection holds a pidfd of its peer, and one of an attached process holds its pages and a
    second pidfd. Connections must never use up the descriptors of pages.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = 4 * slots + 4 * gpus + 2 * OPERATORS_LIMIT + _OWN_DESCRIPTORS
    wanted = reserved + _CONNECTION_DESCRIPTORS * (slots + _SPARE_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    spare = wanted - reserved if soft == resource.RLIM_INFINITY else min(soft, wanted) - reserved
    connections = spare // _CONNECTION_DESCRIPTORS - slots
    if connections < _MIN_SPARE_CONNECTIONS:
        limit = reserved + _CONNECTION_DESCRIPTORS * (slots + _MIN_SPARE_CONNECTIONS)
        remedy = f"needs {limit} open files and {hard} are allowed; choose fewer, or raise the limit (ulimit -Hn)"
        raise ConfigError("node.slots", slots, remedy)
    return slots + connections
