"""What happens when several tenants share a device for a while: who they are, and what became of each."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.domain.gate import Limit
from cotenant.domain.instant import MILLISECOND_NS, SECOND_NS
from cotenant.domain.load import Load
from cotenant.experiment.kernels import Setting
from cotenant.sim.kernels import World
from cotenant.sim.kernels_host import Client, Door

WHOLE: Final = 100
SAMPLE_NS: Final = 100 * MILLISECOND_NS


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant of the device."""

    load: Load
    online: bool
    priority: int
    slo_ns: int = 0
    share_ppm: int = 0
    """Of an offline tenant, what it gets at least; with a limit, what it is held to."""
    limit: Limit = Limit.OFF
    percent: int = 100
    """Of the SMs, what it may have blocks on under MPS (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Who shares, for how long, and from when on it counts. Online loads bring their instants, the same every time."""

    guests: tuple[Guest, ...]
    setting: Setting
    for_ns: int
    warm_ns: int = 0
    sample_ns: int = SAMPLE_NS


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's run. All instants are from its beginning; the window is what counts."""

    begin_ns: int
    end_ns: int
    dues_ns: array[int]
    """Of every request that was due before the end, in order, whether it was taken up or not; none of a training."""
    ends_ns: array[int]
    """When they ended, in the same order: shorter by those that had not."""
    done_ns: int
    """Kernel time completed in the window: what these kernels take alone."""
    progress_ns: array[int]
    """The same since the beginning of the run, at every sample."""
    delayed_ns: int
    waited_ns: int

    @property
    def window_s(self) -> float:
        """How long the window is."""
        return (self.end_ns - self.begin_ns) / SECOND_NS

    def latencies_ns(self, begin_ns: int | None = None, end_ns: int | None = None) -> list[int]:
        """Of the requests that were due in the window, or between two instants, and ended before the run did."""
        first, last = self._span(begin_ns, end_ns)
        return [end - due for due, end in zip(self.dues_ns[first:last], self.ends_ns[first:last], strict=False)]

    def kept(self, slo_ns: int, begin_ns: int | None = None, end_ns: int | None = None) -> tuple[int, int]:
        """Requests within the objective, and those of which it is known: who waits for longer by now has missed it."""
        first, last = self._span(begin_ns, end_ns)
        ended = self.latencies_ns(begin_ns, end_ns)
        overdue = sum(self.end_ns - due > slo_ns for due in self.dues_ns[first + len(ended) : last])
        return sum(one <= slo_ns for one in ended), len(ended) + overdue

    def attainment(self, slo_ns: int, begin_ns: int | None = None, end_ns: int | None = None) -> float:
        """The part of the requests that were answered within the objective; 1 if there were none."""
        within, known = self.kept(slo_ns, begin_ns, end_ns)
        return within / known if known else 1.0

    def within_per_s(self, slo_ns: int) -> float:
        """Requests answered within the objective, per second of the window: their goodput."""
        return self.kept(slo_ns)[0] / self.window_s

    def ended_per_s(self) -> float:
        """Requests answered, per second of the window, whenever they were due."""
        first = bisect.bisect_left(self.ends_ns, self.begin_ns)
        return (len(self.ends_ns) - first) / self.window_s

    def quantile_ns(self, fraction: float) -> int:
        """Of the latencies in the window; what has not ended counts with what it has waited already. 0: none came."""
        first, last = self._span(None, None)
        ended = self.latencies_ns()
        pending = (self.end_ns - due for due in self.dues_ns[first + len(ended) : last])
        ordered = sorted([*ended, *pending])
        return ordered[min(math.ceil(fraction * len(ordered)), len(ordered)) - 1] if ordered else 0

    def _span(self, begin_ns: int | None, end_ns: int | None) -> tuple[int, int]:
        begin_ns = self.begin_ns if begin_ns is None else begin_ns
        end_ns = self.end_ns if end_ns is None else end_ns
        return bisect.bisect_left(self.dues_ns, begin_ns), bisect.bisect_left(self.dues_ns, end_ns)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the controller, and why it was made."""

    at_ns: int
    online_ppm: int
    cause: str
    detail: str = ""
    shares: tuple[tuple[int, int], ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a way of sharing made of a run."""

    way: str
    gpus: int
    """Devices that it took."""
    begin_ns: int
    end_ns: int
    busy_ns: int
    """Time in the window with at least one block on a device, over all devices."""
    sm_ns: int
    guests: tuple[Lived, ...]
    turns: tuple[Turn, ...] = ()
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    """What is particular to a way: its own idea of how it fares."""


def clients_of(run: Run, *, sliced: bool) -> list[Client]:
    """The tenants as processes of a device: one group under MPS, one each where they take turns."""
    return [
        Client(
            guest.load,
            place if sliced else 0,
            run.setting.seed * 1_000_003 + place,
            sm_cap=0
            if sliced or guest.percent >= WHOLE
            else max(guest.percent * run.setting.device.sm_count // WHOLE, 1),
        )
        for place, guest in enumerate(run.guests)
    ]


def world_of(run: Run, clients: Sequence[Client], doors: Sequence[Door]) -> World:
    """Their device, with nothing played yet."""
    return World(run.setting.device, clients, doors, run.setting.costs, run.setting.seed)


def live_through(way: str, run: Run, world: World, turns: Sequence[Turn] = ()) -> Outcome:
    """Play it, and say what became of everybody. `turns` may still be filled while it is played."""
    progress = [array("q") for _ in run.guests]

    def sample(now_ns: int) -> None:
        del now_ns
        for series, done_ns in zip(progress, world.done_ns(), strict=True):
            series.append(done_ns)

    world.every(run.sample_ns, sample)
    played = world.play_for(run.for_ns, run.warm_ns)
    lived = []
    for place, (guest, tally) in enumerate(zip(run.guests, played.clients, strict=True)):
        begun_ns, ends_ns = world.requests_of(place)
        lived.append(
            Lived(
                begin_ns=run.warm_ns,
                end_ns=run.for_ns,
                dues_ns=_dues_ns(guest.load, begun_ns, run.for_ns),
                ends_ns=ends_ns,
                done_ns=tally.done_ns,
                progress_ns=progress[place],
                delayed_ns=tally.delayed_ns,
                waited_ns=tally.waited_ns,
            )
        )
    return Outcome(
        way=way,
        gpus=1,
        begin_ns=run.warm_ns,
        end_ns=run.for_ns,
        busy_ns=played.busy_ns,
        sm_ns=played.sm_ns,
        guests=tuple(lived),
        turns=tuple(turns),
    )


def _dues_ns(load: Load, begun_ns: array[int], until_ns: int) -> array[int]:
    """With listed instants, also those that nobody has got round to."""
    if load.arrival.kind != "instants":
        return begun_ns
    listed_ns = load.arrival.instants_ns[: load.requests]
    return array("q", listed_ns[: bisect.bisect_left(listed_ns, until_ns)])
