"""Where do the figures of a running node come from? Its machine, its files, and the witness of its turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cotenant import __version__
from cotenant.domain.gpu import Gpu
from cotenant.domain.histogram import Histogram
from cotenant.domain.protect import GpuSample, GpuWatch
from cotenant.domain.tenant import TenantView
from cotenant.live.observe.figures import GpuFigures, NodeFigures, TenantFigures
from cotenant.live.observe.witness import Witness
from cotenant.machine.node import NodeMachine


class NodeLook:
    """Called for all figures at this instant."""

    def __init__(
        self, machine: NodeMachine, witness: Witness, process: Callable[[], tuple[Histogram, int, int]]
    ) -> None:
        """`process` says how long turns took, how large the journal is, and how many lines of the log were lost."""
        self._machine = machine
        self._witness = witness
        self._process = process

    def __call__(self) -> NodeFigures:
        """Everything."""
        machine, witness = self._machine, self._witness
        denied = {gpu: witness.denied(gpu) for gpu in range(len(machine.settings.gpus))}
        tenants = tuple(self._tenant(view, denied) for view in machine.tenants())
        watches = machine.watches()
        gpus = [
            self._gpu(index, gpu, watches[index] if index < len(watches) else GpuWatch(), tenants)
            for index, gpu in enumerate(machine.settings.gpus)
        ]
        turn_ns, journal_bytes, log_dropped = self._process()
        return NodeFigures(
            version=__version__,
            slots=machine.settings.slots,
            turns=machine.turn,
            turn_ns=turn_ns,
            journal_bytes=journal_bytes,
            log_dropped=log_dropped,
            tenants=tenants,
            gpus=tuple(gpus),
            departed=witness.departed,
            happenings=witness.happenings,
            refusals=witness.refusals,
            faults=witness.faults,
            adjustments=witness.adjustments,
        )

    def _tenant(self, view: TenantView, denied: Mapping[int, Mapping[int, int]]) -> TenantFigures:
        tenant = view.tenant
        terms = tenant.terms
        return TenantFigures(
            name=tenant.name,
            gpu=terms.gpu,
            kind=terms.kind,
            stage=tenant.standing.stage,
            paused=tenant.paused,
            restarts=tenant.restarts,
            quota_bytes=terms.memory_bytes,
            held_bytes=self._witness.held_bytes(terms),
            work=self._witness.work_of(terms, denied.get(terms.gpu, {}).get(terms.slot, 0)),
            slo_ns=terms.slo_ns,
            latencies=self._witness.latencies_of(terms),
        )

    def _gpu(self, index: int, gpu: Gpu, watch: GpuWatch, tenants: tuple[TenantFigures, ...]) -> GpuFigures:
        witness = self._witness
        return GpuFigures(
            name=gpu.name,
            health=watch.health,
            memory_bytes=gpu.memory_bytes,
            sample=witness.samples.get(index, GpuSample()),
            held_bytes=sum(tenant.held_bytes for tenant in tenants if tenant.gpu == index),
            evictions=witness.evictions[index],
            is_mps_ready=witness.mps.get(index, False),
            online_ppm=dial.online_ppm if (dial := self._machine.seats.dials.get(index)) is not None else -1,
        )
