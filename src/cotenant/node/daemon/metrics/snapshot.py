"""Collects the metrics of a running node from its state machine, its files, and the observer of its turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cotenant import __version__
from cotenant.node.daemon.metrics.values import GpuMetrics, NodeMetrics, TenantMetrics
from cotenant.node.daemon.observer import TurnObserver
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import GpuSample, GpuWatch
from cotenant.node.model.tenant import TenantView
from cotenant.node.state.node import NodeMachine
from cotenant.units.histogram import Histogram


class MetricsCollector:
    """Returns all metrics at the present instant when called."""

    def __init__(
        self, machine: NodeMachine, observer: TurnObserver, process: Callable[[], tuple[Histogram, int, int]]
    ) -> None:
        """`process` returns the durations of turns, the size of the journal, and the number of lost log lines."""
        self._machine = machine
        self._observer = observer
        self._process = process

    def __call__(self) -> NodeMetrics:
        """Return the metrics."""
        machine, observer = self._machine, self._observer
        denied = {gpu: observer.denied(gpu) for gpu in range(len(machine.settings.gpus))}
        tenants = tuple(self._tenant(each, denied) for view in machine.tenants() for each in view.by_device())
        watches = machine.watches()
        gpus = [
            self._gpu(index, gpu, watches[index] if index < len(watches) else GpuWatch(), tenants)
            for index, gpu in enumerate(machine.settings.gpus)
        ]
        turn_ns, journal_bytes, log_dropped = self._process()
        return NodeMetrics(
            version=__version__,
            slots=machine.settings.slots,
            turns=machine.turn,
            turn_ns=turn_ns,
            journal_bytes=journal_bytes,
            log_dropped=log_dropped,
            tenants=tenants,
            gpus=tuple(gpus),
            departed=observer.departed,
            log_events=observer.log_events,
            refusals=observer.refusals,
            faults=observer.faults,
            adjustments=observer.adjustments,
        )

    def _tenant(self, view: TenantView, denied: Mapping[int, Mapping[int, int]]) -> TenantMetrics:
        tenant = view.tenant
        grant = tenant.grant
        account = self._observer.account(grant)
        return TenantMetrics(
            name=tenant.name,
            gpu=grant.gpu,
            kind=grant.kind,
            phase=tenant.lifecycle.phase,
            paused=tenant.paused,
            restarts=tenant.restarts,
            quota_bytes=grant.memory_bytes,
            held_bytes=account.held_bytes,
            work=self._observer.work_of(grant, denied.get(grant.gpu, {}).get(grant.slot, 0)),
            slo_ns=grant.slo_ns,
            latencies=self._observer.latencies_of(grant),
            measured_bytes=account.measured_bytes,
            unseen_bytes=account.unseen_bytes,
            over_bytes=account.over_bytes,
            imported_bytes=account.imported_bytes,
        )

    def _gpu(self, index: int, gpu: Gpu, watch: GpuWatch, tenants: tuple[TenantMetrics, ...]) -> GpuMetrics:
        observer = self._observer
        ledger = observer.ledger(index)
        return GpuMetrics(
            name=gpu.name,
            health=watch.health,
            memory_bytes=gpu.memory_bytes,
            sample=observer.samples.get(index, GpuSample()),
            held_bytes=sum(tenant.held_bytes for tenant in tenants if tenant.gpu == index),
            evictions=observer.evictions[index],
            is_mps_ready=observer.mps.get(index, False),
            online_ppm=setpoint.online_ppm
            if (setpoint := self._machine.registry.tables.setpoints.get(index)) is not None
            else -1,
            foreign_bytes=ledger.foreign_bytes,
            unmatched_bytes=ledger.unmatched_bytes,
        )
