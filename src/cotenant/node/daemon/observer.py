"""Observes every turn of a node: writes log events and counts them for the metrics."""

from __future__ import annotations

from collections import Counter

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.ledger import LedgerAccount, LedgerSnapshot
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.metrics.values import WorkCounters
from cotenant.node.daemon.tenant_pages import TenantPages
from cotenant.node.model.action import Action, Revoke
from cotenant.node.model.event import Event, MpsStatusChanged
from cotenant.node.model.log_event import LogEvent, LogEventKind
from cotenant.node.model.protection import GpuSample
from cotenant.node.state.event_log import EventLog
from cotenant.units.instant import Instant

_REFUSALS = (LogEventKind.REFUSED, LogEventKind.COMMAND_REFUSED)
_FAULTS = (LogEventKind.FAULTED, LogEventKind.GPU_FAULTED, LogEventKind.HUNG, LogEventKind.MPS_EXITED)


class TurnObserver:
    """Called after each turn; counts begin at zero with each start of the node."""

    def __init__(self, log: NodeLog, pages: TenantPages, ledgers: LiveLedgers, turn: int) -> None:
        """Start without counts; turns up to this one were reported by an earlier process."""
        self._log = log
        self._pages = pages
        self._ledgers = ledgers
        self._event_log = EventLog(turn=turn)
        self.samples: dict[int, GpuSample] = {}
        self.mps: dict[int, bool] = {}
        self.evictions: Counter[int] = Counter()
        self.log_events: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.adjustments: Counter[str] = Counter()
        self.departed: dict[tuple[int, Kind], WorkCounters] = {}

    def __call__(self, now: Instant, event: Event, actions: list[Action]) -> None:
        """Record a turn."""
        if isinstance(event, MpsStatusChanged):
            self.mps[event.gpu] = event.is_ready
        for action in actions:
            if isinstance(action, Revoke):
                self._add_departed_work(action)
        for log_event in self._event_log.record(now, event, actions):
            self._log.write_event(log_event)
            self._count(log_event)

    def record_sample(self, gpu: int, sample: GpuSample) -> None:
        """Record a sample of a device, which need not have caused a turn."""
        self.samples[gpu] = sample

    def denied(self, gpu: int) -> dict[int, int]:
        """Return the allocations that quotas refused on a device, by slot."""
        return self._ledgers.denied(gpu) if gpu >= 0 else {}

    def work_of(self, grant: Grant, denied: int) -> WorkCounters:
        """Return a tenant's work on the device of a grant, and its refused allocations from the ledger."""
        if grant.gpu < 0:
            return WorkCounters()
        counts = self._pages.counts(grant)
        if counts.generation != grant.generation:  # the tenant has not launched yet
            return WorkCounters(denied=denied)
        requests = (counts.requests_ended, counts.requests_over, counts.requests_sum_ns)
        return WorkCounters(counts.device_ns, counts.launches, counts.waits, counts.waited_ns, denied, *requests)

    def latencies_of(self, grant: Grant) -> tuple[int, ...]:
        """Return the latency histogram of an online tenant from its page."""
        if grant.gpu < 0 or grant.kind is not Kind.ONLINE:
            return ()
        counts = self._pages.counts(grant)
        return counts.request_buckets if counts.generation == grant.generation else ()

    def ledger(self, gpu: int) -> LedgerSnapshot:
        """Return the ledger of a device."""
        return self._ledgers.snapshot(gpu)

    def account(self, grant: Grant) -> LedgerAccount:
        """Return the account of a tenant; an empty one without a device."""
        account = self._ledgers.snapshot(grant.gpu).accounts.get(grant.slot) if grant.gpu >= 0 else None
        is_own = account is not None and account.generation == grant.generation
        return account if account is not None and is_own else LedgerAccount(grant.slot, grant.generation, 0)

    def _add_departed_work(self, action: Revoke) -> None:
        """Add the counters of a departed tenant to the sums, before the slot is reused and its page cleared."""
        resident = self._event_log.tenants.get(action.slot)
        if resident is None or resident.grant.generation != action.generation:
            return
        for gpu in resident.grant.places:
            grant = resident.grant.on(gpu)
            key = (gpu, grant.kind)
            denied = self.denied(gpu).get(grant.slot, 0)
            self.departed[key] = self.departed.get(key, WorkCounters()).add(self.work_of(grant, denied))

    def _count(self, log_event: LogEvent) -> None:
        self.log_events[log_event.what.value] += 1
        if log_event.what in _REFUSALS:
            self.refusals[log_event.why] += 1
        elif log_event.what in _FAULTS:
            self.faults[log_event.why] += 1
        elif log_event.what is LogEventKind.ADJUSTED:
            self.adjustments[log_event.why] += 1
        elif log_event.what is LogEventKind.EVICTED:
            self.evictions[log_event.gpu] += 1
