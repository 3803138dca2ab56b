"""How is each device doing, and what does that mean for those on it and those who want to be?"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.domain.action import Action, MpsRestart, Watch
from cotenant.domain.event import (
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpuSeen,
    MpsSeen,
    OnlineFirst,
    TenantFaulted,
    TenantHangs,
)
from cotenant.domain.fault import Act, ErrorClass, Source, called
from cotenant.domain.gpu import Gpu
from cotenant.domain.instant import NEVER, Instant
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.protect import Block, GpuWatch, Health, Stage, clipped
from cotenant.domain.tenant import Kind, Tenant
from cotenant.format.quantity import round_duration
from cotenant.machine.exits import Exits
from cotenant.machine.pressure import Pressure
from cotenant.machine.roll import Roll
from cotenant.machine.suspensions import Suspensions
from cotenant.policy.protect import errors, monitor

_KERNEL_LIMIT: Final = 80
"""So much of a kernel's name is told: templates make names that would leave no room for what it did."""
_WELL: Final = (Health.INIT, Health.HEALTHY)


class Devices:
    """The watch of each device, and who comes first after its server died."""

    __slots__ = ("_exits", "_pressure", "_roll", "_suspensions", "is_well", "online_first", "watches")

    def __init__(self, roll: Roll, exits: Exits, suspensions: Suspensions, pressure: Pressure) -> None:
        """No device is known."""
        self._roll = roll
        self._exits = exits
        self._suspensions = suspensions
        self._pressure = pressure
        self.watches: list[GpuWatch] = []
        self.online_first: dict[int, OnlineFirst] = {}
        self.is_well = True  # nothing of this bars anybody

    # -- beginnings ------------------------------------------------------------------------------------------------

    def restore(self, watches: tuple[GpuWatch, ...], online_first: tuple[OnlineFirst, ...]) -> None:
        """Know what a snapshot knew; a journal of an older version knows nothing of devices."""
        missing = len(self._roll.settings.gpus) - len(watches)
        self.watches = [*watches, *([GpuWatch()] * missing)]
        self.online_first = {one.gpu: one for one in online_first}
        self._judge()

    def started(self, before: tuple[Gpu, ...], now: Instant) -> list[Action]:
        """A node that begins anew is told what is wrong with a device as soon as it looks: until then, nothing is.

        Only what it knows by itself stays: limits that were exceeded, and errors after which everybody must leave. A
        device that is not the one that had its number begins anew, too.
        """
        actions: list[Action] = []
        known = self.watches
        self.watches = []
        for index, gpu in enumerate(self._roll.settings.gpus):
            is_same = index < min(len(before), len(known)) and before[index] == gpu
            watch = known[index] if is_same else GpuWatch()
            blocked = tuple(one for one in watch.blocked if one is Block.DRAIN)
            self.watches.append(watch)
            if blocked != watch.blocked:
                actions += self._block(index, blocked, "", now)
        limits = self._roll.settings.limits
        self.online_first = {
            gpu: msgspec.structs.replace(one, until_ns=now + limits.online_first_ns)
            for gpu, one in self.online_first.items()
            if gpu < len(self.watches)
        }
        self._judge()
        return actions

    def found(self, count: int) -> None:
        """So many devices are new; nothing is known of them."""
        self.watches += [GpuWatch()] * count

    def _knows(self, gpu: int) -> bool:
        return 0 <= gpu < len(self.watches)

    def looks_well(self) -> bool:
        """Whether nothing about any device bars anybody."""
        return not self.online_first and all(watch.health in _WELL for watch in self.watches)

    def _judge(self) -> None:
        self.is_well = self.looks_well()

    # -- who may come ----------------------------------------------------------------------------------------------

    def bars(self, kind: Kind, now: Instant) -> dict[int, Reject]:
        """The devices that take nobody of this kind now, each with its reason."""
        found = [(gpu, self._bar(gpu, kind, now)) for gpu in range(len(self.watches))]
        return {gpu: reject for gpu, reject in found if reject is not None}

    def _bar(self, gpu: int, kind: Kind, now: Instant) -> Reject | None:
        limits = self._roll.settings.limits
        watch = self.watches[gpu]
        if watch.health is Health.DISABLED:
            return self._refusal(gpu, "takes nobody", watch.why, 5 * limits.period_ns)
        if kind is Kind.ONLINE:
            return None
        if watch.health is Health.OVERLIMIT:
            wait_ns = max(watch.until_ns - now, limits.period_ns)
            return self._refusal(gpu, "is over its limit and takes no offline tenant", watch.why, wait_ns)
        if watch.health is Health.UNHEALTHY:
            wait_ns = limits.calm_samples * limits.period_ns
            return self._refusal(gpu, "is unhealthy and takes no new offline tenant", watch.why, wait_ns)
        first = self.online_first.get(gpu)
        if first is not None and (first.until_ns == NEVER or now < first.until_ns):
            wait_ns = limits.online_first_ns if first.until_ns == NEVER else first.until_ns - now
            whom = ", ".join(first.names)
            return self._refusal(gpu, "takes its online tenants first", f"its MPS server died under {whom}", wait_ns)
        until_ns = self._pressure.bars(gpu)
        if until_ns is not None:
            detail = f"an online tenant waits for room on GPU {gpu}"
            return Reject(Reason.NO_ROOM_YET, detail, max(until_ns - now, limits.period_ns))
        if gpu in self._roll.aside.values():
            detail = f"a suspended tenant of GPU {gpu} comes back before anybody offline comes"
            return Reject(Reason.NO_ROOM_YET, detail, max(limits.make_room_ns, limits.period_ns))
        return None

    def _refusal(self, gpu: int, does: str, why: str, wait_ns: int) -> Reject:
        return Reject(Reason.UNHEALTHY, f"GPU {gpu} {does}{f': {why}' if why else ''}", wait_ns)

    def came(self, tenant: Tenant) -> None:
        """Somebody joined, or was begun anew in its place: one fewer to wait for, if it is one of those."""
        first = self.online_first.get(tenant.terms.gpu)
        if first is None or tenant.terms.kind is not Kind.ONLINE:
            return
        back = tenant.name if tenant.name in first.names else first.names[0]
        names = tuple(name for name in first.names if name != back)
        if names:
            self.online_first[first.gpu] = msgspec.structs.replace(first, names=names)
        else:
            del self.online_first[first.gpu]
            self._judge()

    # -- what was seen ---------------------------------------------------------------------------------------------

    def seen(self, event: GpuSeen, now: Instant) -> list[Action]:
        """One more sample; on a device that is well, those who went aside may come back."""
        gpu = event.gpu
        if not self._knows(gpu):
            return []
        first = self.online_first.get(gpu)
        if first is not None and first.until_ns != NEVER and now >= first.until_ns:
            del self.online_first[gpu]
            self._judge()
        actions = self._move(gpu, monitor.observe(self.watches[gpu], event.sample, self._roll.settings.limits, now))
        if self.watches[gpu].health in _WELL and self._pressure.bars(gpu) is None:
            actions += self._suspensions.seen(gpu, event.sample, now)
        return actions

    def is_moved_by(self, event: GpuSeen, now: Instant) -> bool:
        """Whether a sample would change anything: who looks every second need not tell us of every look."""
        gpu = event.gpu
        if not self._knows(gpu):
            return False
        watch = self.watches[gpu]
        if watch.health is Health.OVERLIMIT or gpu in self.online_first or self._pressure.waiting:
            return True
        if any(tenant.standing.stage is Stage.SUSPENDED for tenant in self._roll.on(gpu)):
            return True
        return monitor.observe(watch, event.sample, self._roll.settings.limits, now) != watch

    def _move(self, gpu: int, watch: GpuWatch) -> list[Action]:
        """Remember it; only another state is worth a word."""
        before = self.watches[gpu]
        if watch.health is before.health:
            self.watches[gpu] = watch
            return []
        watch = self.watches[gpu] = msgspec.structs.replace(watch, turn=self._roll.turn)
        self._judge()
        return [Watch(self._roll.turn, gpu, watch)]

    def _block(self, gpu: int, blocked: tuple[Block, ...], why: str, now: Instant) -> list[Action]:
        """What keeps everybody away is this now; with nothing left the device begins anew."""
        watch = msgspec.structs.replace(self.watches[gpu], blocked=blocked)
        self.watches[gpu] = msgspec.structs.replace(self.watches[gpu], blocked=blocked)
        actions = self._move(gpu, monitor.lost(watch, why, now) if blocked else monitor.back(watch, now))
        bar = self._bar(gpu, Kind.ONLINE, now)
        return actions if bar is None else [*actions, *self._pressure.turn_away(gpu, bar)]

    def _add_block(self, gpu: int, block: Block, why: str, now: Instant) -> list[Action]:
        blocked = self.watches[gpu].blocked
        return [] if block in blocked else self._block(gpu, (*blocked, block), why, now)

    def _take_block(self, gpu: int, block: Block, now: Instant) -> list[Action]:
        blocked = self.watches[gpu].blocked
        if block not in blocked:
            return []
        return self._block(gpu, tuple(one for one in blocked if one is not block), "", now)

    def settle(self, now: Instant) -> list[Action]:
        """No offline tenant stays on a device over its limit; one that all had to leave begins anew when they have."""
        actions: list[Action] = []
        for gpu, watch in enumerate(self.watches):
            if watch.health is Health.OVERLIMIT:
                actions += self._clear(gpu, watch, now)
            elif Block.DRAIN in watch.blocked and all(_is_new(tenant, watch) for tenant in self._roll.on(gpu)):
                actions += self._take_block(gpu, Block.DRAIN, now)
        return actions

    def _clear(self, gpu: int, watch: GpuWatch, now: Instant) -> list[Action]:
        why = f"GPU {gpu} was over its limit ({watch.why})"
        actions: list[Action] = []
        for tenant in self._roll.on(gpu):
            if tenant.terms.kind is Kind.OFFLINE and tenant.standing.stage is Stage.RUNNING:
                actions += self._pressure.give_way(tenant, why, 0, now)
        return actions

    # -- what went wrong -------------------------------------------------------------------------------------------

    def lost(self, event: GpuLost, now: Instant) -> list[Action]:
        """A device is gone."""
        detail = f": {event.detail}" if event.detail else ""
        return self._lose(event.gpu, f"it is lost{detail}", now) if self._knows(event.gpu) else []

    def _lose(self, gpu: int, why: str, now: Instant, block: Block = Block.DEVICE) -> list[Action]:
        """Nobody joins; everybody on it is asked to end, and their work need not be waited for."""
        if block in self.watches[gpu].blocked:
            return []
        actions = self._add_block(gpu, block, why, now)
        for tenant in self._roll.on(gpu):
            actions += self._exits.begin(tenant.terms.slot, f"ended: GPU {gpu} is disabled: {why}", now, drain=False)
        return actions

    def back(self, event: GpuBack, now: Instant) -> list[Action]:
        """A device answers again."""
        return self._take_block(event.gpu, Block.DEVICE, now) if self._knows(event.gpu) else []

    def mps(self, event: MpsSeen, now: Instant) -> list[Action]:
        """The server of a device is there or gone; its clients hear that from their own calls."""
        gpu = event.gpu
        if not self._knows(gpu):
            return []
        if not event.is_ready:
            return self._server_died(gpu, f"its MPS server is gone{f': {event.detail}' if event.detail else ''}", now)
        first = self.online_first.get(gpu)
        if first is not None and first.until_ns == NEVER:
            until_ns = now + self._roll.settings.limits.online_first_ns
            self.online_first[gpu] = msgspec.structs.replace(first, until_ns=until_ns)
        return self._take_block(gpu, Block.SERVER, now)

    def _server_died(self, gpu: int, why: str, now: Instant) -> list[Action]:
        """Nobody joins until it is there again; then those first whom others must not hurt."""
        actions = self._add_block(gpu, Block.SERVER, why, now)
        if actions:
            names = tuple(tenant.name for tenant in self._roll.on(gpu) if tenant.terms.kind is Kind.ONLINE)
            if names:
                self.online_first[gpu] = OnlineFirst(gpu, names, NEVER)
                self._judge()
        return [*actions, MpsRestart(self._roll.turn, gpu)]

    def device_faulted(self, event: GpuFaulted, now: Instant) -> list[Action]:
        """An Xid: of a tenant, if anybody knows of whom, or of the device."""
        if not self._knows(event.gpu):
            return []
        found = errors.classify(Source.XID, event.xid)
        tenant = self._roll.of_slot(event.slot, event.generation)
        return self._act(found, f"Xid {event.xid}", event.gpu, tenant, now)

    def tenant_faulted(self, event: TenantFaulted, now: Instant) -> list[Action]:
        """An error that a process of a tenant met."""
        tenant = self._roll.of_slot(event.slot, event.generation)
        if tenant is None or event.source not in _SOURCES:
            return []
        found = errors.classify(_SOURCES[event.source], event.code)
        return self._act(found, f"{called(event.source)} {event.code}", tenant.terms.gpu, tenant, now)

    def hangs(self, event: TenantHangs, now: Instant) -> list[Action]:
        """A kernel that does not end; of an online tenant that is only told, for nobody serves in its place."""
        tenant = self._roll.of_slot(event.slot, event.generation)
        if tenant is None or tenant.terms.kind is Kind.ONLINE:
            return []
        known = f", {round_duration(event.expected_ns)} expected" if event.expected_ns else ""
        kernel = f"kernel {clipped(event.kernel, _KERNEL_LIMIT)}" if event.kernel else "a kernel"
        found = errors.classify(Source.HANG, 0)
        what = f"{kernel} has run for {round_duration(event.waited_ns)}{known}"
        return self._act(found, what, tenant.terms.gpu, tenant, now)

    def _act(self, found: ErrorClass, what: str, gpu: int, tenant: Tenant | None, now: Instant) -> list[Action]:
        """Do what the table says."""
        gist = found.words.split(". ", 1)[0]  # the page of errors has the rest
        why = clipped(f"{what} ({found.name}: {gist})")
        if tenant is not None and found.act is Act.END:
            return self._exits.begin_after_fault(tenant.terms.slot, f"ended: {why}", now, again=found.restart)
        if tenant is not None and found.act is Act.KILL:
            return self._exits.kill(tenant.terms.slot, f"killed: {why}", now, again=found.restart)
        if not self._knows(gpu):
            return []
        if found.act is Act.RESTART_SERVER:
            return self._server_died(gpu, why, now)
        if found.act is Act.DISABLE:
            # Whether the device is gone, and back, is for whoever looks at it to say: it may be reset before that.
            return self._lose(gpu, why, now, Block.DRAIN)
        return self._drain(gpu, why, now) if found.act is Act.DRAIN else []

    def _drain(self, gpu: int, why: str, now: Instant) -> list[Action]:
        """Nobody joins, offline tenants end, and online ones when they see fit; then the device begins anew."""
        actions = self._add_block(gpu, Block.DRAIN, why, now)
        for tenant in self._roll.on(gpu):
            if tenant.terms.kind is Kind.OFFLINE:
                actions += self._exits.begin(tenant.terms.slot, f"evicted: {why}", now)
        return actions


def _is_new(tenant: Tenant, watch: GpuWatch) -> bool:
    """Whether another program runs in its place since the device went wrong: the one that met the error is gone."""
    return tenant.standing.stage is Stage.RUNNING and tenant.standing.since_ns > watch.since_ns


_SOURCES: Final = {source.value: source for source in Source}
