"""Wires what the node sees and does by itself: devices, ledgers and tenants' work, and MPS where it is wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from cotenant.apps.softgpu import home
from cotenant.domain.event import Event, GpuSeen
from cotenant.domain.instant import Instant
from cotenant.domain.protect import GpuSample
from cotenant.domain.tenant import Kind, Terms
from cotenant.format.config import Config
from cotenant.live.clock import LiveClock, wall_ahead_ns
from cotenant.live.days import DaysFile
from cotenant.live.directory import Places
from cotenant.live.errand import Errands
from cotenant.live.gate import HEADROOM_VARIABLE, LiveGates
from cotenant.live.ledger import LiveLedgers
from cotenant.live.loop import LiveLoop
from cotenant.live.mps import MPS_DIRECTORY, Mps, Program
from cotenant.live.watch.days import DaysKeeper
from cotenant.live.watch.device import Devices
from cotenant.live.watch.kin import Kin
from cotenant.live.watch.node import Parts, Watch
from cotenant.live.watch.probe import DEADLINE_S, Prober
from cotenant.live.watch.warden import LiveWardens, since_boot
from cotenant.live.watch.windows import Objectives
from cotenant.machine.days import Days
from cotenant.machine.node import NodeMachine


class Lookout:
    """The node's eyes and hands beyond its door."""

    def __init__(
        self,
        config: Config,
        places: Places,
        machine: NodeMachine,
        loop: LiveLoop,
        clock: LiveClock,
        gates: LiveGates,
        say: Callable[[str], None],
    ) -> None:
        """Look at nothing yet; raises `ConfigError` where MPS is wanted and cannot be had."""
        self._machine = machine
        self._loop = loop
        self._clock = clock
        homes = soft_homes(places, os.environ)
        self.mps: Mps | None = None
        if config.node.mps == "on":
            program = Program(places.runtime / MPS_DIRECTORY, os.environ, homes)
            self.mps = Mps(loop, clock, program, lambda: len(machine.settings.gpus))
        self.ledgers = LiveLedgers(places.pages, config.node.slots)
        self._kin = Kin()
        self._errands = Errands(loop, "cotenant-watch")
        records = places.runtime / "hook"
        prober = None
        if config.protect.probe == "on":
            prober = Prober(Errands(loop, "cotenant-probe"), homes, self._mps_environment, DEADLINE_S)
        parts = Parts(gates, self.ledgers, self._kin, Devices(homes), self._errands, records, prober)
        self._show: Callable[[int, GpuSample], None] = lambda *_: None
        self.watch = Watch(machine, parts, self._post)
        self._say = say
        file = DaysFile(places.days, say)
        days = Days(file.read(), wall_ahead_ns())
        self._objectives = Objectives(machine, gates, lambda: machine.seats.dials, loop.post, days=days)
        self._writing = Errands(loop, "cotenant-days")
        self._keeper = DaysKeeper(file, days, self._objectives, self._writing, say)

    def wardens(self) -> LiveWardens:
        """What carries out the machine's decisions about processes and devices."""
        restart = (lambda: None) if self.mps is None else self.mps.restart
        return LiveWardens(self.ledgers, self._kin, self._say, joined_ns=self._joined_ns, restart_mps=restart)

    def environment(self, terms: Terms) -> dict[str, str]:
        """What a program on a device needs in its environment besides its terms."""
        if terms.gpu < 0:
            return {}
        control = self._machine.settings.control
        is_capped = self.mps is not None and control.mps_share and terms.kind is Kind.OFFLINE
        capped = {HEADROOM_VARIABLE: str(control.headroom_ppm)} if is_capped else {}
        return {**self._mps_environment(), **capped}

    def begin(self, show: Callable[[int, GpuSample], None]) -> None:
        """From here on the loop wakes us; every sample is shown, whether it makes a turn or not."""
        self._show = show
        self._loop.add_timed(self.watch)
        self._loop.add_timed(self._objectives)
        self._loop.add_timed(self._keeper)
        if self.mps is not None:
            self._loop.add_timed(self.mps)
            self.mps.begin()

    def close(self) -> None:
        """Look no more. MPS stays while tenants are there: they go on, and so does their server."""
        self.watch.close()
        self._errands.close()
        self._writing.close()
        self._keeper.close()
        if self.mps is not None:
            self.mps.close(keep=bool(self._machine.tenants()))
        self.ledgers.close()

    def _post(self, event: Event) -> None:
        """A sample that changes nothing makes no turn: a week of them would be read again at every start."""
        if isinstance(event, GpuSeen):
            self._show(event.gpu, event.sample)
            if not self._machine.is_moved_by(event, self._clock.now()):
                return
        self._loop.post(event)

    def _mps_environment(self) -> dict[str, str]:
        return {} if self.mps is None else self.mps.environment()

    def _joined_ns(self, slot: int) -> Instant | None:
        views = [view.tenant for view in self._machine.tenants() if view.tenant.terms.slot == slot]
        return since_boot(views[0].joined_ns, self._clock.now()) if views else None


def soft_homes(places: Places, environ: Mapping[str, str]) -> list[Path]:
    """Where software GPUs of this node may live: its own directory, then the one that the environment names."""
    named = environ.get("COTENANT_SOFTGPU")
    return [home(places), *([Path(named)] if named else [])]
