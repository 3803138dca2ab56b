"""Speed of a training and slowdown of a service that share a GPU, for many GPUs at once.

Closed-form over measured curves (parameters.json): the speed of a service and of a training by part of the SMs, the
part of its time on the GPU, and the SMs it holds then. Assumptions:

- SMs, memory bandwidth, caches and power are contended; copies and hosts are not modelled. While both programs are on
  the GPU, each slows the other by `Contention`: the law of the device model (native/device/rate.c) for split SMs.
- Work is conserved: a slowed program uses as many SM-seconds per request or step as alone.
- The host of a service runs ahead of the GPU: waiting of its kernels is hidden as long as the host is slower.
- Requests arrive at random, are served one at a time and take equally long (M/D/1), which turns longer requests into
  longer queues. In overload, the utilization is limited to `_FULL`.

Sharing modes:

- `space`: the training has at most its share of the SMs; the service has all others, and the share as well while the
  training does not use it. Both share the bandwidth. A training without a share runs while no request is active, behind
  the gate: a request waits for the rest of the kernel that runs when it arrives.
- `mps`: no shares. Each kernel of the service waits for the training's kernel that holds all SMs, if there is one.
- `mps-priority`: the same with MPS client priorities, which spare a part of the kernels this wait.
- `time`: equal time slices while both have work. A service that waits for its host within a request loses the GPU, and
  then waits for the end of the training's slice.
- `priority`: time slices, but the service keeps the GPU while it has work, once the training's slice has ended.
- `none`: a GPU with a service has no training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from cotenant.cluster.sim.physics.parameters import NARROW, Row, services, trainings
from cotenant.errors import InvariantError
from cotenant.predict.usage import TaskUse
from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

MODES: Final = ("space", "mps", "mps-priority", "time", "priority", "none")
ABSENT: Final = -1
_IN_TURNS: Final = ("time", "priority")
_STEPS: Final = 20
"""Grid of shares; speeds are interpolated linearly."""
_BANDWIDTH: Final = 0.8
"""Part of the GPU's bandwidth that a memory-bound kernel requests."""
_SLICE_NS: Final = 2_000_000
"""Length of a time slice, as in the device model."""
_IDLE_NS: Final = 500_000
"""Mean length of the intervals without work on the GPU within a request: our choice."""
_POWER_FREE, _POWER_SMS = 0.75, 0.7
"""Part of the full power up to which clocks do not fall, and part of the power that follows the SMs in use."""
_OVERRUN_NS: Final = 500_000
"""Longest wait for a kernel of a training behind the gate: the gate's bound of outstanding work."""
_FULL: Final = 0.98
_SLO: Final = 3
"""Latency objective of a service, as a multiple of its latency alone."""


class Service(Value, frozen=True):
    """An online model alone."""

    name: str
    use: TaskUse
    memory_bytes: int
    slo_ns: int


class Training(Value, frozen=True):
    """A kind of offline job alone."""

    name: str
    use: TaskUse
    memory_bytes: int


class SharingResult(NamedTuple):
    """Results per GPU, as float32 arrays."""

    rate: Any
    """Speed of the training relative to the whole GPU alone; 0: there is none."""
    slowdown: Any
    """Latency of the service with queueing, relative to that alone at the same load; 1: there is none."""
    sm_activity: Any
    """Part of SM time with work."""
    utilization: Any
    """Part of the time with work on any SM."""
    service: Any
    """Duration of a request of the service without queueing, relative to that alone; 1: there is none."""


class Contention(Value, frozen=True):
    """How much programs on the GPU at the same time slow each other; the values of the `hardware` costs."""

    cache: float = 0.07
    """Slowdown by another program, in L2 and on the way to it."""
    dram: float = 0.03
    """Additional slowdown when the other uses the whole memory bandwidth."""
    clock_drop: float = 0.10
    """Fall of the clocks at full power."""
    switch_ns: int = 100_000
    """Idle time when another program is switched in."""
    priority_effect: float = 0.5
    """Part of the kernels that overtake those of clients of lower priority under MPS."""


HARDWARE_CONTENTION: Final = Contention()


class ColocationModel:
    """Physical model of pairs. Policies never read it."""

    def __init__(
        self,
        services: tuple[Service, ...],
        trainings: tuple[Training, ...],
        speeds: Any,
        remaining_ns: Sequence[float],
        contention: Contention = HARDWARE_CONTENTION,
    ) -> None:
        """Build the model of services and then trainings.

        `speeds`: relative speed at 0, 1/20, ... 1 of the SMs. `remaining_ns`: mean remaining duration of the
        kernel that runs at a random instant.
        """
        self._contention = contention
        self.services = services
        self.trainings = trainings
        uses = [*(service.use for service in services), *(training.use for training in trainings)]
        # One more row, for an absent program: index -1 finds it.
        self._speeds = np.vstack([np.asarray(speeds, dtype=np.float64), np.ones((1, _STEPS + 1))])
        self._busy = np.array([*(use.duty_ppm / WHOLE_PPM for use in uses), 0.0])
        self._width = np.array([*(_width(use) for use in uses), 0.0])
        self._wide = np.array([*(_wide(use) for use in uses), 0.0])
        self._memory = np.array([*(_BANDWIDTH * use.memory_ppm / WHOLE_PPM for use in uses), 0.0])
        self._round_ns = np.array([*(max(use.round_ns, 1) for use in uses), 1.0])
        self._kernel_ns = np.array([*(max(use.kernel_ns, 1) for use in uses), 1.0])
        self._remaining_ns = np.array([*remaining_ns, 0.0])

    def evaluate(self, service: Any, load: Any, training: Any, share: Any, mode: str = "space") -> SharingResult:
        """Return the results elementwise; -1: no service, no training.

        `load`: part of the time in which the service would have a request active when alone. `share`: part of
        the SMs for the training, used in the mode `space` only; 0: it runs while no request is active.
        """
        if mode not in MODES:
            raise InvariantError(f"unknown sharing mode: {mode}")
        first = np.asarray(service, dtype=np.intp)
        second = np.asarray(training, dtype=np.intp)
        second = np.where(second < 0, ABSENT, second + len(self.services))
        offered_load = np.where(first < 0, 0.0, np.clip(np.asarray(load, dtype=np.float64), 0.0, _FULL))
        part = np.clip(np.asarray(share, dtype=np.float64), 0.0, 1.0) if mode == "space" else np.ones(first.shape)
        if mode == "none":
            second = np.where(first >= 0, ABSENT, second)
        stretch, rate = getattr(self, f"_{mode.replace('-', '_')}")(first, second, offered_load, part)
        rate = np.where(second < 0, 0.0, np.clip(rate, 0.0, 1.0))
        stretch = np.where(first < 0, 1.0, np.maximum(stretch, 1.0))
        in_turns = (mode in _IN_TURNS) | _is_behind_gate(first, second, part)
        return self._result(first, second, offered_load, stretch, rate, in_turns)

    def _space(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        alone = self._speed(second, part)
        holds = self._wide[second] * np.where(
            part > 0, alone / np.maximum(part, 1e-9), 0.0
        )  # part of the time in which the training uses its whole share
        slower = 1 / np.maximum(self._speed(first, 1 - part), 1e-3) - 1
        stretch = 1 + np.minimum(holds, 1.0) * slower
        stretch, rate = self._bandwidth(first, second, load, stretch, alone)
        overrun = np.minimum(self._remaining_ns[second], _OVERRUN_NS) / self._round_ns[first]
        waits = 1 + (1 - load) * self._busy[second] * overrun
        is_behind = _is_behind_gate(first, second, part)
        return np.where(is_behind, waits, stretch), np.where(is_behind, 1 - np.minimum(load * waits, 1.0), rate)

    def _mps(self, first: Any, second: Any, load: Any, part: Any, *, waiting_part: float = 1.0) -> tuple[Any, Any]:
        del part
        waits = waiting_part * self._wide[second] * self._remaining_ns[second] / self._kernel_ns[first]
        stretch = np.maximum(1.0, self._busy[first] * (1 + waits))
        rate = 1 - self._wide[second] * load * self._busy[first] * self._width[first]
        return self._bandwidth(first, second, load, stretch, rate)

    def _mps_priority(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        return self._mps(first, second, load, part, waiting_part=1 - self._contention.priority_effect)

    def _time(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del part
        busy, other = self._busy[first], self._busy[second]
        turns = 1 + self._idle_intervals(first)
        stretch = np.maximum(1.0, busy * (1 + other)) + other * turns * self._slice(first)
        switches = load * turns * 2 * self._contention.switch_ns / self._round_ns[first]
        return stretch, 1 - other * np.minimum(load * busy + switches, 0.5)

    def _priority(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del part
        busy, other = self._busy[first], self._busy[second]
        turns = 1 + self._idle_intervals(first)
        return 1 + other * turns * self._slice(first), 1 - other * load * busy

    def _idle_intervals(self, first: Any) -> Any:
        """Return how often a program loses the GPU within a request, at most once per kernel."""
        idle_ns = (1 - self._busy[first]) * self._round_ns[first]
        kernels = self._busy[first] * self._round_ns[first] / self._kernel_ns[first]
        return np.minimum(idle_ns / _IDLE_NS, kernels)

    def _slice(self, first: Any) -> Any:
        """Return the mean remainder of a slice and the switch, relative to the duration of the request."""
        return (_SLICE_NS / 2 + self._contention.switch_ns) / self._round_ns[first]

    def _none(self, first: Any, second: Any, load: Any, part: Any) -> tuple[Any, Any]:
        del second, load, part
        return np.ones(first.shape), np.ones(first.shape)

    def _bandwidth(self, first: Any, second: Any, load: Any, stretch: Any, rate: Any) -> tuple[Any, Any]:
        """Slow both programs down by contention and the excess demand for bandwidth while both are on the GPU."""
        over = np.maximum(0.0, self._memory[first] / stretch + self._memory[second] * rate - 1)
        is_pair = (first >= 0) & (second >= 0) & (rate > 0)
        both = np.where(is_pair, self._busy[second] * self._busy[first], 0.0)
        stretch = stretch * (1 + both * (over + self._contended(first, second)))
        active = np.minimum(load * stretch, 1.0)
        return stretch, rate / (1 + active * both * (over + self._contended(second, first)))

    def _contended(self, program: Any, other: Any) -> Any:
        """Return by how much a program is slowed while another is on the GPU as well."""
        contention = self._contention
        width = np.minimum(self._width[program] + self._width[other], 1.0)
        memory = np.minimum(self._memory[program] + self._memory[other], 1.0)
        fall = self._clock_fall(width, memory) - self._clock_fall(self._width[program], self._memory[program])
        return contention.cache + contention.dram * self._memory[other] + fall

    def _clock_fall(self, width: Any, memory: Any) -> Any:
        power = _POWER_SMS * width + (1 - _POWER_SMS) * memory
        return self._contention.clock_drop * np.maximum(0.0, power - _POWER_FREE) / (1 - _POWER_FREE)

    def _result(self, first: Any, second: Any, load: Any, stretch: Any, rate: Any, in_turns: Any) -> SharingResult:
        served = np.minimum(load, _FULL / stretch)
        active = served * stretch
        queued = (1 + active / (2 * (1 - active))) / (1 + load / (2 * (1 - load)))
        online, offline = served * self._busy[first], rate * self._busy[second]
        activity = np.minimum(online * self._width[first] + offline * self._width[second], 1.0)
        observed = active * self._on_gpu_part(first, stretch)
        co_runners = np.where(rate > 0, self._on_gpu_part(second, 1 / np.maximum(rate, 1e-6)), 0.0)
        together = 1 - (1 - observed) * (1 - co_runners)
        utilization = np.where(in_turns, np.minimum(online + offline, 1.0), together)
        columns = (rate, stretch * queued, activity, np.maximum(utilization, activity), stretch)
        return SharingResult(*(np.asarray(column, dtype=np.float32) for column in columns))

    def _on_gpu_part(self, program: Any, stretch: Any) -> Any:
        """Return the part of a slowed request or step with work on the GPU; its time off the GPU does not change."""
        off_gpu = 1 - self._busy[program]
        return np.where(program < 0, 0.0, 1 - off_gpu / np.maximum(stretch, 1.0))

    def _speed(self, program: Any, part: Any) -> Any:
        position = np.clip(part, 0.0, 1.0) * _STEPS
        below = np.minimum(position.astype(np.intp), _STEPS - 1)
        low, high = self._speeds[program, below], self._speeds[program, below + 1]
        return low + (position - below) * (high - low)


def _is_behind_gate(first: Any, second: Any, part: Any) -> Any:
    """Return where a training has no share, and runs while the service has no request active."""
    return (first >= 0) & (second >= 0) & (part <= 0)


def built_in(contention: Contention = HARDWARE_CONTENTION) -> ColocationModel:
    """Return the model of the services and trainings that come with the package."""
    rows = (*services(), *trainings())
    steps = np.linspace(0, 1, _STEPS + 1)
    return ColocationModel(
        tuple(Service(row.name, _use(row), row.memory_bytes, _SLO * row.took_ns) for row in services()),
        tuple(Training(row.name, _use(row), row.memory_bytes) for row in trainings()),
        [np.interp(steps, (0.0, *row.shares), (0.0, *row.speeds)) for row in rows],
        [row.remaining_ns for row in rows],
        contention,
    )


def _use(row: Row) -> TaskUse:
    part = row.wide / max(row.busy, 1e-9)
    widths = (
        (WHOLE_PPM, round(part * WHOLE_PPM)),
        (round(NARROW * WHOLE_PPM), round((1 - part) * WHOLE_PPM)),
    )
    return TaskUse(
        duty_ppm=round(row.busy * WHOLE_PPM),
        widths=tuple((width, part_ppm) for width, part_ppm in widths if part_ppm),
        memory_ppm=round(row.memory * WHOLE_PPM),
        kernel_ns=row.kernel_ns,
        longest_ns=row.longest_ns,
        round_ns=row.took_ns,
        round_device_ns=round(row.busy * row.took_ns),
    )


def _wide(use: TaskUse) -> float:
    """Return the part of its time in which it holds every SM."""
    return use.duty_ppm / WHOLE_PPM * sum(part for width, part in use.widths if width == WHOLE_PPM) / WHOLE_PPM


def _width(use: TaskUse) -> float:
    """Return the mean part of the SMs that it holds while on the GPU."""
    return sum(width * part for width, part in use.widths) / WHOLE_PPM**2
