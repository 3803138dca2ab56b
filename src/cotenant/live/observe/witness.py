"""Sees every turn of a node for those who look at it: tells the log, and counts what happens."""

from __future__ import annotations

from collections import Counter

from cotenant.domain.action import Action, Revoke
from cotenant.domain.event import Event, MpsSeen
from cotenant.domain.happening import Happening, What
from cotenant.domain.instant import Instant
from cotenant.domain.protect import GpuSample
from cotenant.domain.tenant import Kind, Terms
from cotenant.live.gate import LiveGates
from cotenant.live.ledger import LiveLedgers
from cotenant.live.observe.figures import Work
from cotenant.live.observe.log import NodeLog
from cotenant.machine.chronicle import Chronicle

_REFUSALS = (What.REFUSED, What.WISH_REFUSED)
_FAULTS = (What.FAULTED, What.GPU_FAULTED, What.HANGS, What.MPS_GONE)


class Witness:
    """Called after each turn; counts begin at zero with each start of the node."""

    def __init__(self, log: NodeLog, gates: LiveGates, ledgers: LiveLedgers, turn: int) -> None:
        """Nothing was seen yet: turns up to this one were told by an earlier process, and are in the journal."""
        self._log = log
        self._gates = gates
        self._ledgers = ledgers
        self._chronicle = Chronicle(turn=turn)
        self.samples: dict[int, GpuSample] = {}
        self.mps: dict[int, bool] = {}
        self.evictions: Counter[int] = Counter()
        self.happenings: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.adjustments: Counter[str] = Counter()
        self.departed: dict[tuple[int, Kind], Work] = {}

    def __call__(self, now: Instant, event: Event, actions: list[Action]) -> None:
        """One turn is over."""
        if isinstance(event, MpsSeen):
            self.mps[event.gpu] = event.is_ready
        for action in actions:
            if isinstance(action, Revoke):
                self._keep_work(action)
        for happening in self._chronicle.tell(now, event, actions):
            self._log.tell(happening)
            self._count(happening)

    def saw(self, gpu: int, sample: GpuSample) -> None:
        """One more look at a device, of which the node need not have made a turn."""
        self.samples[gpu] = sample

    def denied(self, gpu: int) -> dict[int, int]:
        """Allocations that a quota refused on a device, by slot."""
        return self._ledgers.denied(gpu) if gpu >= 0 else {}

    def work_of(self, terms: Terms, denied: int) -> Work:
        """What a tenant did so far, by its own page, and how often its account says that it was denied."""
        if terms.gpu < 0:
            return Work()
        counts = self._gates.counts(terms.gpu, terms.slot)
        if counts.generation != terms.generation:  # it has not launched yet, and the page is still an earlier tenant's
            return Work(denied=denied)
        served = (counts.requests_ended, counts.requests_over, counts.requests_sum_ns)
        return Work(counts.device_ns, counts.launches, counts.waits, counts.waited_ns, denied, *served)

    def latencies_of(self, terms: Terms) -> tuple[int, ...]:
        """How many requests of an online tenant took how long, by its own page."""
        if terms.gpu < 0 or terms.kind is not Kind.ONLINE:
            return ()
        counts = self._gates.counts(terms.gpu, terms.slot)
        return counts.request_buckets if counts.generation == terms.generation else ()

    def held_bytes(self, terms: Terms) -> int:
        """The device memory that a tenant holds."""
        return self._ledgers.held(terms.gpu, terms.slot) if terms.gpu >= 0 else 0

    def _keep_work(self, action: Revoke) -> None:
        """Before anybody else gets the slot, and with it an empty page."""
        resident = self._chronicle.residents.get(action.slot)
        if resident is None or resident.terms.generation != action.generation:
            return
        terms = resident.terms
        place = (terms.gpu, terms.kind)
        denied = self.denied(terms.gpu).get(terms.slot, 0)
        self.departed[place] = self.departed.get(place, Work()).plus(self.work_of(terms, denied))

    def _count(self, happening: Happening) -> None:
        self.happenings[happening.what.value] += 1
        if happening.what in _REFUSALS:
            self.refusals[happening.why] += 1
        elif happening.what in _FAULTS:
            self.faults[happening.why] += 1
        elif happening.what is What.ADJUSTED:
            self.adjustments[happening.why] += 1
        elif happening.what is What.EVICTED:
            self.evictions[happening.gpu] += 1
