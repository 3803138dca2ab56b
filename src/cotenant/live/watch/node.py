"""When does the node look, and what does it make of what it sees? Often while somebody is there, else not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cotenant.domain.event import (
    Event,
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpuSeen,
    NodeSettings,
    TenantDrained,
    TenantHangs,
)
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS, Instant
from cotenant.domain.protect import WHY_LIMIT, GpuWatch, Health, Stage, clipped
from cotenant.domain.tenant import Kind, Tenant, TenantView
from cotenant.live.clock import monotonic_ns
from cotenant.live.errand import Errands, Outcome
from cotenant.live.gate import LiveGates
from cotenant.live.hook.ring import latest_kernel
from cotenant.live.ledger import LiveLedgers
from cotenant.live.process import lineage
from cotenant.live.watch.books import Books
from cotenant.live.watch.context import LEAST_FREE_BYTES
from cotenant.live.watch.device import Devices, Question, Seen
from cotenant.live.watch.kin import STOPPED, Kin, word_of
from cotenant.live.watch.probe import Prober
from cotenant.live.watch.work import Page, Stall, is_drained

TICK_NS: Final = 50 * MILLISECOND_NS
"""A death is noticed within this; a device that is asked then answers long before the next."""
DEADLINE_NS: Final = 5 * SECOND_NS
"""A device that has not answered by then is as good as lost."""
_HELD_BACK: Final = (Stage.DRAINING, Stage.FINISHING, Stage.SUSPENDING)
_WHOLE_PCT: Final = 100
_SAMPLES_AFTER: Final = 2
"""Of a device that all have left: the first may still tell of the time before, and who asks is told the last one."""


class Known(Protocol):
    """What the node's machine knows; only looked at."""

    turn: int
    settings: NodeSettings

    def tenants(self) -> list[TenantView]:
        """Everybody who holds a slot."""
        ...

    def watches(self) -> list[GpuWatch]:
        """How each device does."""
        ...


class Parts(msgspec.Struct, frozen=True):
    """What a watch works with."""

    gates: LiveGates
    ledgers: LiveLedgers
    kin: Kin
    devices: Devices
    errands: Errands
    records: Path
    """Where programs under the hook leave their records: a kernel that hangs has its name there."""
    prober: Prober | None = None
    """Finds out what a context takes before anybody has one; None: that is learned from tenants."""


class _Place:
    """One device of the node, from look to look."""

    def __init__(self, gpu: int, parts: Parts, post: Callable[[Event], None]) -> None:
        self.gpu = gpu
        self.books = Books(gpu, parts.ledgers, parts.kin, post)
        self.tenants: list[Tenant] = []
        self.stalls: dict[tuple[int, int], Stall] = {}
        self.drained: dict[tuple[int, int], Instant] = {}
        self.is_known = False  # NVML has shown it at least once
        self.is_lost = False
        self.sampled_ns: Instant | None = None
        self.judged_ns: Instant | None = None
        self.samples_left = 0
        self.free_bytes = 0  # at the latest sample
        self.is_probed = False


def _seats(tenants: Sequence[Tenant]) -> set[tuple[int, int]]:
    return {(tenant.terms.slot, tenant.terms.generation) for tenant in tenants}


class Watch:
    """Wakes by itself while there is anything to look after; a node that nobody uses sleeps."""

    def __init__(self, known: Known, parts: Parts, post: Callable[[Event], None]) -> None:
        """Whatever an earlier node left in the ledgers is looked at first."""
        self._known = known
        self._parts = parts
        self._post = post
        self._places: dict[int, _Place] = {}
        self._turn = -1
        self._due: Instant = 0
        self._asked_ns: Instant | None = None
        self._asked: Sequence[Question] = ()
        self._left_behind = set(parts.ledgers.devices())

    # ---- when ----------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> Instant | None:
        """The next look, if anybody or anything needs one."""
        self._refresh()
        if self._asked_ns is None and not any(self._needs_looks(place) for place in self._places.values()):
            return None
        return self._due

    def wake(self, now: Instant) -> None:
        """Look at the ledgers and pages here and now, and have the devices asked."""
        self._due = now + TICK_NS
        if self._asked_ns is not None:
            if now - self._asked_ns > DEADLINE_NS:
                self._give_up()
            return
        for place in self._places.values():
            if self._is_to_be_probed(place):
                self._probe(place)
        questions = [self._read(place, now) for place in self._places.values() if self._needs_looks(place)]
        self._left_behind.clear()
        self._asked = [question for question in questions if question is not None]
        if self._asked:
            asked, devices = self._asked, self._parts.devices
            self._asked_ns = now
            self._parts.errands.send(lambda: devices.look(asked), self._answered)

    def close(self) -> None:
        """Hold on to nobody any more; the thread ends when its last look does."""
        self._parts.kin.keep_only(())
        if self._parts.prober is not None:
            self._parts.prober.close()
        self._parts.errands.send(self._parts.devices.close, lambda _: None)

    def _refresh(self) -> None:
        """Sort the tenants by device, after any turn that may have changed them."""
        if self._turn == self._known.turn:
            return
        self._turn = self._known.turn
        for gpu in range(len(self._known.settings.gpus)):
            if gpu not in self._places:
                self._places[gpu] = _Place(gpu, self._parts, self._post)
        before = {gpu: _seats(place.tenants) for gpu, place in self._places.items()}
        for place in self._places.values():
            place.tenants = []
        for view in self._known.tenants():
            terms = view.tenant.terms
            if terms.gpu in self._places:
                self._places[terms.gpu].tenants.append(view.tenant)
        for place in self._places.values():
            seats = _seats(place.tenants)
            if before[place.gpu] - seats:  # its last process may have come and died since we last looked
                self._left_behind.add(place.gpu)
            place.stalls = {key: stall for key, stall in place.stalls.items() if key in seats}
            place.drained = {key: at for key, at in place.drained.items() if key in seats}

    def _needs_looks(self, place: _Place) -> bool:
        is_wanted = place.samples_left or place.gpu in self._left_behind or self._is_to_be_probed(place)
        if place.tenants or not place.books.is_empty or is_wanted:
            return True
        # Until it is well again, or for the first time; one that nobody can see has no state to be watched.
        is_visible = place.is_known or place.is_lost or place.sampled_ns is None
        return is_visible and self._health(place.gpu) is not Health.HEALTHY

    def _is_to_be_probed(self, place: _Place) -> bool:
        """Once, on a device that is well and has room: a context more for a moment must be in nobody's way."""
        is_wanted = self._parts.prober is not None and not place.is_probed and place.free_bytes >= LEAST_FREE_BYTES
        return is_wanted and not place.is_lost and self._health(place.gpu) is Health.HEALTHY

    def _probe(self, place: _Place) -> None:
        place.is_probed = True
        if self._parts.prober is not None:
            self._parts.prober.ask(place.gpu, self._known.settings.gpus[place.gpu], place.books.expect)

    def _health(self, gpu: int) -> Health:
        watches = self._known.watches()
        return watches[gpu].health if gpu < len(watches) else Health.INIT

    # ---- before the device is asked ------------------------------------------------------------------------------

    def _read(self, place: _Place, now: Instant) -> Question | None:
        seats = {tenant.terms.slot: tenant.terms.generation for tenant in place.tenants}
        is_unsettled = place.books.read(seats, now)
        period_ns = self._known.settings.limits.period_ns
        is_due = place.sampled_ns is None or now - place.sampled_ns >= period_ns
        held_back = [tenant for tenant in place.tenants if tenant.standing.stage in _HELD_BACK]
        if is_due:
            place.sampled_ns = now
        if not (is_unsettled or is_due or held_back or (place.tenants and place.is_known)):
            return None
        return Question(
            place.gpu,
            self._known.settings.gpus[place.gpu],
            sample=is_due,
            held=is_due or is_unsettled,
            uses=bool(held_back) or (is_due and any(tenant.spec.kind is Kind.OFFLINE for tenant in place.tenants)),
        )

    # ---- after ---------------------------------------------------------------------------------------------------

    def _answered(self, outcome: Outcome[list[Seen]]) -> None:
        asked, self._asked, self._asked_ns = self._asked, (), None
        for question, seen in zip(asked, outcome.result(), strict=True):
            self._take(self._places[seen.gpu], question, seen)

    def _take(self, place: _Place, question: Question, seen: Seen) -> None:
        self._tell_xids(place, seen)
        if not seen.is_there or seen.lost:
            # One that was found once is lost; of one that a person named nobody says that NVML must know it.
            if place.is_known or question.device.called:
                self._lose(place, seen.lost or "NVML does not know it")
            place.books.settle(None)
            place.samples_left = 0
            self._judge_drains(place, None)
            return
        place.is_known = True
        if place.is_lost:
            place.is_lost = False
            self._post(GpuBack(place.gpu))
        if seen.held_bytes is not None:
            place.books.settle(seen.held_bytes)
        self._judge_drains(place, seen.uses_pct)
        if question.sample:
            self._judge_stalls(place, seen)
            self._tell_sample(place, seen)

    def _give_up(self) -> None:
        """The thread hangs in the driver. The device that it asked is lost; the others are not seen meanwhile."""
        place = self._places.get(self._parts.devices.asking)
        if place is not None and place.is_known and not place.is_lost:
            self._lose(place, f"NVML has not answered for {DEADLINE_NS // SECOND_NS} s")

    def _lose(self, place: _Place, why: str) -> None:
        if not place.is_lost:
            place.is_lost = True
            self._post(GpuLost(place.gpu, clipped(why)))

    def _tell_sample(self, place: _Place, seen: Seen) -> None:
        if seen.sample is None:
            return
        is_deserted = not place.tenants and place.books.is_empty
        place.samples_left = max(0, place.samples_left - 1) if is_deserted else _SAMPLES_AFTER
        place.free_bytes = seen.sample.memory_bytes - seen.sample.memory_used_bytes
        held = {Kind.ONLINE: 0, Kind.OFFLINE: 0}
        for tenant in place.tenants:
            held[tenant.spec.kind] += place.books.held(tenant.terms.slot)
        sample = msgspec.structs.replace(
            seen.sample, online_memory_bytes=held[Kind.ONLINE], offline_memory_bytes=held[Kind.OFFLINE]
        )
        self._post(GpuSeen(place.gpu, sample))

    def _tell_xids(self, place: _Place, seen: Seen) -> None:
        for xid, pid in seen.xids:
            whose = next((tenant for tenant in place.tenants if pid and self._was_of(place, tenant, pid)), None)
            slot, generation = (-1, 0) if whose is None else (whose.terms.slot, whose.terms.generation)
            self._post(GpuFaulted(place.gpu, xid, slot, generation))

    def _was_of(self, place: _Place, tenant: Tenant, pid: int) -> bool:
        """Whoever meets an error may be gone before anybody looks."""
        return self._is_of(place, tenant, pid) or place.books.had(tenant.terms.slot, pid)

    def _is_of(self, place: _Place, tenant: Tenant, pid: int) -> bool:
        """By the ledger; a program without the hook has no line there, and descends from the tenant's parent."""
        owners = place.books.owners(tenant.terms.slot)
        return any(self._parts.kin.find(owner) == pid for owner in owners) or tenant.pid in lineage(pid)

    def _page(self, tenant: Tenant) -> Page:
        page = msgspec.convert(self._parts.gates.page(tenant.terms.gpu, tenant.terms.slot), Page)
        return page.believed(monotonic_ns())

    def _judge_drains(self, place: _Place, uses_pct: Mapping[int, int] | None) -> None:
        for tenant in list(place.tenants):
            key = tenant.terms.slot, tenant.terms.generation
            standing = tenant.standing
            if standing.stage not in _HELD_BACK or place.drained.get(key) == standing.since_ns:
                continue
            is_at_work = None if uses_pct is None else any(self._is_of(place, tenant, pid) for pid in uses_pct)
            if is_drained(self._page(tenant), key[1], monotonic_ns(), is_at_work=is_at_work):
                place.drained[key] = standing.since_ns
                self._post(TenantDrained(*key))

    def _judge_stalls(self, place: _Place, seen: Seen) -> None:
        now, limits = monotonic_ns(), self._known.settings.limits
        passed_ns = 0 if place.judged_ns is None else min(now - place.judged_ns, 2 * limits.period_ns)
        place.judged_ns = now
        for tenant in list(place.tenants):
            if tenant.spec.kind is not Kind.OFFLINE or tenant.paused or tenant.standing.stage is not Stage.RUNNING:
                continue
            page = self._page(tenant)
            if not page.is_of(tenant.terms.generation) or self._is_stopped(place, tenant):
                continue
            key = tenant.terms.slot, tenant.terms.generation
            stall = place.stalls.setdefault(key, Stall())
            busy_ns = passed_ns * self._use_pct(place, tenant, seen) // _WHOLE_PCT
            expected_ns = stall.look(page, busy_ns, now, limits)
            if expected_ns is not None:
                self._post(TenantHangs(*key, self._latest_kernel(place, tenant), expected_ns, stall.waited_ns))

    def _use_pct(self, place: _Place, tenant: Tenant, seen: Seen) -> int:
        """For how much of the time the device worked for a tenant; where it does not tell, for how much it worked."""
        if seen.uses_pct is None:
            return 0 if seen.sample is None else max(0, seen.sample.utilization_ppm) * _WHOLE_PCT // 1_000_000
        own = (use_pct for pid, use_pct in seen.uses_pct.items() if self._is_of(place, tenant, pid))
        return min(_WHOLE_PCT, sum(own))

    def _is_stopped(self, place: _Place, tenant: Tenant) -> bool:
        return any(self._parts.kin.state(owner) in STOPPED for owner in place.books.owners(tenant.terms.slot))

    def _latest_kernel(self, place: _Place, tenant: Tenant) -> str:
        numbers = [word_of(owner).pid for owner in place.books.owners(tenant.terms.slot)]
        return latest_kernel(self._parts.records, numbers)[:WHY_LIMIT]
