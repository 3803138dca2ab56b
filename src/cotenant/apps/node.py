"""Wires the node daemon: recover from the journal, open the door, go on until stopped."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence

import msgspec

from cotenant import __version__
from cotenant.apps.node_show import Showcase
from cotenant.apps.node_watch import Lookout
from cotenant.apps.softgpu import home
from cotenant.domain.action import NO_PEER
from cotenant.domain.event import GpusFound, NodeRestored, NodeStarted, NodeStopping
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import NEVER
from cotenant.domain.tenant import TenantSpec
from cotenant.errors import ConfigError, InvariantError
from cotenant.format import wire
from cotenant.format.config import Config
from cotenant.format.journal import TurnReader
from cotenant.host import Divergence, Host, NodePorts, NodeWorld, replay, same_promises
from cotenant.live.clock import LiveClock, clock_kept_in, unix_ns
from cotenant.live.directory import Places, close_directory, group_id_of, listen, make_directory, take_lock
from cotenant.live.door import LiveDoor
from cotenant.live.gate import LiveGates
from cotenant.live.journal import FileJournal, Recovery
from cotenant.live.loop import LiveLoop
from cotenant.live.observe.http import CONNECTIONS
from cotenant.live.observe.log import NodeLog
from cotenant.live.page import LivePages
from cotenant.live.process import name_process
from cotenant.live.search import Search
from cotenant.live.softgpu.manage import MAX_GPUS
from cotenant.live.stopping import stop_on_signals
from cotenant.machine.node import NodeMachine

_SPARE_CONNECTIONS = 256
_FEWEST_SPARE = 8
_OWN_DESCRIPTORS = 32 + CONNECTIONS


def serve_node(config: Config, places: Places, log: NodeLog) -> None:
    """Be the node of these directories until told to stop; the log gets a line for whatever a person should know."""
    say = log.say
    showcase = Showcase(config.node, log)
    group_id = group_id_of(config.node.group)
    locks = _take_directories(places, group_id)
    name_process("cotenant-node")
    pages = LivePages(places.pages)
    gates = LiveGates(places.pages, config.node.slots)
    machine, clock = _recover(places, pages, say)
    journal = FileJournal(places.journal, config.node.journal_limit)
    loop = LiveLoop(clock)
    search = Search(home(places), os.environ) if config.node.find == "yes" and not config.gpu else None
    gpus = tuple(gpu.gpu() for gpu in config.gpu)
    if search is not None:
        # A device that tenants hold keeps its place, whether it is still there or not.
        gpus = search.merged([gpu for gpu in machine.settings.gpus if gpu.called] if machine.tenants() else [])

    def roll() -> wire.Tenants:
        return _roll(machine, clock, loop)

    def foresee(spec: TenantSpec) -> None:
        known = machine.settings.gpus
        is_known = machine.device_called(spec.gpu) is not None if spec.gpu else bool(known)
        new = () if search is None or is_known else search.merged(known)[len(known) :]
        if new:
            loop.post(GpusFound(new))

    connections = _allow_descriptors(config.node.slots, len(gpus) if search is None else max(len(gpus), MAX_GPUS))
    lookout = Lookout(config, places, machine, loop, clock, gates, say)
    listener = listen(places.socket, group_id)
    door = LiveDoor(loop, clock, listener, roll, connections, foresee, lookout.environment)
    ports = NodePorts(door, pages, gates, lookout.ledgers, lookout.wardens())
    witness = showcase.open(machine, loop, clock, journal, (gates, lookout.ledgers))
    loop.bind(Host(machine, NodeWorld(ports, loop.stop).deeds(), journal, witness))
    stop_on_signals(loop, lambda why: loop.post(NodeStopping(why)))
    settings = config.node.settings(gpus, config.protect.limits(), config.control.limits())
    loop.post(NodeStarted(settings, __version__, unix_ns()))
    held = machine.tenants()
    pages.keep_only([view.tenant.terms.slot for view in held])
    gates.keep_only([*range(len(gpus)), *(view.tenant.terms.gpu for view in held)])
    say(_greeting(places, gpus))
    lookout.begin(witness.saw)
    try:
        loop.run()
    finally:
        lookout.close()
        showcase.close()
        door.close()
        pages.close()
        gates.close()
        journal.close()
        places.socket.unlink(missing_ok=True)
        for lock in locks:
            os.close(lock)
    say("node stopped")


def _greeting(places: Places, gpus: Sequence[Gpu]) -> str:
    """What the line of the start before it does not say: where, and with what."""
    return f"serving {places.socket} with {', '.join(gpu.name for gpu in gpus) or 'no GPU'}"


def _take_directories(places: Places, group_id: int) -> list[int]:
    """Make them, and become the one node that uses them, for as long as the returned locks are open.

    Two nodes with a runtime directory each may still share a journal, as with XDG_RUNTIME_DIR in one shell only.
    """
    make_directory(places.runtime, "directories.runtime")
    make_directory(places.state, "directories.state")
    locks = [take_lock(places.lock), take_lock(places.journal_lock)]
    close_directory(places.state, "directories.state")
    close_directory(places.runtime, "directories.runtime", group_id=group_id)
    return locks


def _recover(places: Places, pages: LivePages, say: Callable[[str], None]) -> tuple[NodeMachine, LiveClock]:
    """The machine as the journal left it.

    A journal that this version reads otherwise is set aside, not trusted; of a damaged or lost one the sound part
    counts. Either way the pages remember the generations, so that no (slot, generation) is ever granted twice.
    """
    recovery = Recovery(places.journal, TurnReader)
    machine = NodeMachine()
    trusted = True
    try:
        replay(machine, recovery.turns(), same_promises)
        why = recovery.damage
    except (Divergence, InvariantError) as error:
        why = f"does not replay with this version ({error}); tenants will join anew"
        trusted = False
    generations = pages.generations()
    if not why and not places.journal.exists() and generations:
        why = "is gone; tenants will join anew"
    if not why:
        finding = recovery.mend()
    else:
        head = _head(machine.snapshot(), generations, trusted=trusted)
        finding = recovery.restart_from(head, why)
        machine = NodeMachine()
        machine.handle(head, now=recovery.last_instant)
    if finding:
        say(finding)
    return machine, clock_kept_in(places.clock, recovery.last_instant)


def _head(known: NodeRestored, on_pages: dict[int, int], *, trusted: bool) -> NodeRestored:
    """What a journal that begins anew starts from: what is known, less the tenants that a page says were replaced."""
    most = max(len(known.generations), *(slot + 1 for slot in on_pages), 0)
    before = [*known.generations, *([0] * (most - len(known.generations)))]
    generations = tuple(max(generation, on_pages.get(slot, 0)) for slot, generation in enumerate(before))
    tenants = tuple(
        (NO_PEER, tenant)
        for _, tenant in known.tenants
        if trusted and generations[tenant.terms.slot] == tenant.terms.generation
    )
    return msgspec.structs.replace(
        known, generations=generations, tenants=tenants, away_until_ns=0 if tenants else NEVER
    )


def _roll(machine: NodeMachine, clock: LiveClock, loop: LiveLoop) -> wire.Tenants:
    return wire.Tenants(
        version=wire.VERSION,
        node_version=__version__,
        pid=os.getpid(),
        tenants=machine.tenants(),
        departed=list(machine.departed),
        now_ns=clock.now(),
        turns=machine.turn,
        slots=machine.settings.slots,
        gpus=list(machine.settings.gpus),
        turn_ns=loop.turn_ns.histogram(),
        rules=machine.rules,
        devices=machine.watches(),
        dials=list(machine.seats.dials.values()),
    )


def _allow_descriptors(slots: int, gpus: int) -> int:
    """How many connections there can be, after asking for as many descriptors as the system allows us.

    A slot needs one for its tenant, two for its page and one for a process of it that we hold on to, a device three
    for its gate and as many for its ledger, since a mapping holds one too: strangers must never use up what a page
    will need. More processes than these are held on to by their numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ours = 4 * slots + 6 * gpus + _OWN_DESCRIPTORS
    wanted = ours + _SPARE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = _SPARE_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - ours
    if left < _FEWEST_SPARE:
        limit = ours + _FEWEST_SPARE
        remedy = f"needs {limit} open files and {hard} are allowed; choose fewer, or raise the limit (ulimit -Hn)"
        raise ConfigError("node.slots", slots, remedy)
    return slots + min(left, _SPARE_CONNECTIONS)
