"""What do a service and a training make of one GPU together? By way of sharing, for many GPUs at once.

All is closed form over measured curves (sim/physics/catalogue.py): how fast a service is on a part of the SMs, how fast
a training is, which part of its time each is on the GPU, and how many SMs it holds then. What is our assumption:

- SMs and bandwidth are all that is fought over; caches, copies and hosts are not in it.
- Work is conserved: whoever is slowed holds the GPU's SMs for as many SM-seconds per request or step as alone.
- A service's host runs ahead of the GPU: what its kernels wait is hidden as long as the host is the slower.
- Requests come at random, one is served at a time, and each takes the same (M/D/1): that turns longer requests into
  longer queues. A queue that would never end is taken at `_FULL` of the service's time.

Ways to share:

- `space`: the training has a part of the SMs and never more (cotenant's share); the service has all others, and these
  too while the training leaves them. Bandwidth is for both.
- `mps`: no parts. Every kernel of the service waits until the training's kernel ends that holds all SMs, if one does.
- `time`: the GPU is one's or the other's by time slices: half of the time is each one's while both have work.
- `priority`: the same, but the service keeps the GPU while it has work, once the training's slice is over.
- `none`: a GPU with a service has no training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.use import TaskUse
from cotenant.domain.value import Value
from cotenant.errors import InvariantError
from cotenant.sim.physics import catalogue

WAYS: Final = ("space", "mps", "time", "priority", "none")
NOBODY: Final = -1
_IN_TURNS: Final = ("time", "priority")
_STEPS: Final = 20
"""Of the whole GPU: between them speeds are straight lines."""
_BANDWIDTH: Final = 0.8
"""Of the GPU's, that a kernel asks for which memory bounds: as in sim/physics/stream.py."""
_SLICE_NS: Final = 2_000_000
"""As in the device model."""
_FULL: Final = 0.98
_SLO: Final = 3
"""Times its latency alone: what a service promises."""


class Service(Value, frozen=True):
    """An online model, alone."""

    name: str
    use: TaskUse
    memory_bytes: int
    slo_ns: int


class Training(Value, frozen=True):
    """A kind of offline job, alone."""

    name: str
    use: TaskUse
    memory_bytes: int


class Together(NamedTuple):
    """Of each GPU: float32, one for each that was asked for."""

    rate: Any
    """The training's speed over that alone on the whole GPU; 0: there is none."""
    slowdown: Any
    """The service's latency, its queue in it, over that alone at the same load; 1: there is none."""
    sm_activity: Any
    """Of SMs times time, the part with work."""
    utilization: Any
    """Of the time, the part with work on any SM."""


class Colocated:
    """The truth about pairs. Nothing in it is a belief: policies never see it."""

    def __init__(
        self, services: tuple[Service, ...], trainings: tuple[Training, ...], speeds: Any, left_ns: Sequence[float]
    ) -> None:
        """Of every service and then every training: `speeds` at 0, 1/20, ... 1 of the SMs over that on all of them.

        `left_ns`: how long the kernel goes on that is running when somebody looks, in the mean.
        """
        self.services = services
        self.trainings = trainings
        uses = [*(one.use for one in services), *(one.use for one in trainings)]
        # One row more, of nobody: index -1 finds it.
        self._speeds = np.vstack([np.asarray(speeds, dtype=np.float64), np.ones((1, _STEPS + 1))])
        self._busy = np.array([*(one.duty_ppm / WHOLE_PPM for one in uses), 0.0])
        self._width = np.array([*(_width(one) for one in uses), 0.0])
        self._wide = np.array([*(_wide(one) for one in uses), 0.0])
        self._memory = np.array([*(_BANDWIDTH * one.memory_ppm / WHOLE_PPM for one in uses), 0.0])
        self._round_ns = np.array([*(max(one.round_ns, 1) for one in uses), 1.0])
        self._kernel_ns = np.array([*(max(one.kernel_ns, 1) for one in uses), 1.0])
        self._left_ns = np.array([*left_ns, 0.0])

    def together(self, service: Any, load: Any, training: Any, share: Any, way: str = "space") -> Together:
        """Elementwise; -1: no service, no training.

        `load`: the part of the time in which the service would have a request under way alone.
        `share`: of the SMs, the training's part; only `space` knows parts.
        """
        if way not in WAYS:
            raise InvariantError(f"no such way to share: {way}")
        first = np.asarray(service, dtype=np.intp)
        second = np.asarray(training, dtype=np.intp)
        second = np.where(second < 0, NOBODY, second + len(self.services))
        asked = np.where(first < 0, 0.0, np.clip(np.asarray(load, dtype=np.float64), 0.0, _FULL))
        part = np.clip(np.asarray(share, dtype=np.float64), 0.0, 1.0) if way == "space" else np.ones(first.shape)
        if way == "none":
            second = np.where(first >= 0, NOBODY, second)
        stretch, rate = getattr(self, f"_{way}")(first, second, asked, part)
        rate = np.where(second < 0, 0.0, np.clip(rate, 0.0, 1.0))
        stretch = np.where(first < 0, 1.0, np.maximum(stretch, 1.0))
        return self._told(first, second, asked, stretch, rate, in_turns=way in _IN_TURNS)

    def _space(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        alone = self._speed(second, part)
        holds = self._wide[second] * np.where(
            part > 0, alone / np.maximum(part, 1e-9), 0.0
        )  # of the time, all its part
        slower = 1 / np.maximum(self._speed(first, 1 - part), 1e-3) - 1
        stretch = 1 + np.minimum(holds, 1.0) * slower
        return self._bandwidth(first, second, load, stretch, alone)

    def _mps(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del part
        waits = self._wide[second] * self._left_ns[second] / self._kernel_ns[first]
        stretch = np.maximum(1.0, self._busy[first] * (1 + waits))
        rate = 1 - self._wide[second] * load * self._busy[first] * self._width[first]
        return self._bandwidth(first, second, load, stretch, rate)

    def _time(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del part
        busy, other = self._busy[first], self._busy[second]
        stretch = np.maximum(1.0, busy * (1 + other)) + other * self._slice(first)
        return stretch, 1 - other * np.minimum(load * busy, 0.5)

    def _priority(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del part
        busy, other = self._busy[first], self._busy[second]
        return 1 + other * self._slice(first), 1 - other * load * busy

    def _slice(self, first: Any) -> Any:
        """What is left of a slice when a request comes, over what the request takes."""
        return _SLICE_NS / 2 / self._round_ns[first]

    def _none(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del second, load, part
        return np.ones(first.shape), np.ones(first.shape)

    def _bandwidth(self, first: Any, second: Any, load: Any, stretch: Any, rate: Any) -> tuple[Any, Any]:
        """Who asks for more of it than there is gets on slower, while both are on the GPU."""
        over = np.maximum(0.0, self._memory[first] / stretch + self._memory[second] * rate - 1)
        longer = 1 + over * self._busy[second] * self._busy[first]
        stretch = stretch * longer
        under_way = np.minimum(load * stretch, 1.0)
        return stretch, rate / (1 + over * under_way * self._busy[first] * self._busy[second])

    def _told(self, first: Any, second: Any, load: Any, stretch: Any, rate: Any, *, in_turns: bool) -> Together:
        served = np.minimum(load, _FULL / stretch)
        under_way = served * stretch
        queued = (1 + under_way / (2 * (1 - under_way))) / (1 + load / (2 * (1 - load)))
        online, offline = served * self._busy[first], rate * self._busy[second]
        activity = np.minimum(online * self._width[first] + offline * self._width[second], 1.0)
        if in_turns:
            utilization = np.minimum(online + offline, 1.0)
        else:
            seen = under_way * self._on(first, stretch)
            beside = np.where(rate > 0, self._on(second, 1 / np.maximum(rate, 1e-6)), 0.0)
            utilization = 1 - (1 - seen) * (1 - beside)
        figures = (rate, stretch * queued, activity, np.maximum(utilization, activity))
        return Together(*(np.asarray(one, dtype=np.float32) for one in figures))

    def _on(self, who: Any, stretch: Any) -> Any:
        """Of a slowed request or step, the part with work on the GPU: its time off it stays what it was."""
        off = 1 - self._busy[who]
        return np.where(who < 0, 0.0, 1 - off / np.maximum(stretch, 1.0))

    def _speed(self, who: Any, part: Any) -> Any:
        place = np.clip(part, 0.0, 1.0) * _STEPS
        below = np.minimum(place.astype(np.intp), _STEPS - 1)
        low, high = self._speeds[who, below], self._speeds[who, below + 1]
        return low + (place - below) * (high - low)


def built_in() -> Colocated:
    """The measured services and trainings that come with the package."""
    services = tuple(Service(row.name, _use(row), row.memory_bytes, _SLO * row.took_ns) for row in catalogue.SERVICES)
    trainings = tuple(Training(row.name, _use(row), row.memory_bytes) for row in catalogue.TRAININGS)
    steps = np.linspace(0, 1, _STEPS + 1)
    rows = (*catalogue.SERVICES, *catalogue.TRAININGS)
    speeds = [np.interp(steps, (0.0, *row.shares), (0.0, *row.speeds)) for row in rows]
    return Colocated(services, trainings, speeds, [row.left_ns for row in rows])


def _use(row: catalogue.Row) -> TaskUse:
    part = row.wide / max(row.busy, 1e-9)
    widths = (
        (WHOLE_PPM, round(part * WHOLE_PPM)),
        (round(catalogue.NARROW * WHOLE_PPM), round((1 - part) * WHOLE_PPM)),
    )
    return TaskUse(
        duty_ppm=round(row.busy * WHOLE_PPM),
        widths=tuple((width, of) for width, of in widths if of),
        memory_ppm=round(row.memory * WHOLE_PPM),
        kernel_ns=row.kernel_ns,
        longest_ns=row.longest_ns,
        round_ns=row.took_ns,
        round_device_ns=round(row.busy * row.took_ns),
    )


def _wide(use: TaskUse) -> float:
    """Of its time, the part in which it holds every SM."""
    return use.duty_ppm / WHOLE_PPM * sum(part for width, part in use.widths if width == WHOLE_PPM) / WHOLE_PPM


def _width(use: TaskUse) -> float:
    """The SMs that it holds while it is on the GPU, in the mean."""
    return sum(width * part for width, part in use.widths) / WHOLE_PPM**2
