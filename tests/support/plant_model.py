"""A model of a device for adjust policies: queues in front of a server that offline work slows down."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cotenant.gate.request_buckets import bucket_of
from cotenant.node.model.control import Adjustment, ControlLimits, DeviceWindow, TenantWindow
from cotenant.node.state.control import Control
from cotenant.units.share import WHOLE_PPM

PERIOD_NS = 100_000_000


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate


@dataclass
class Service:
    """One online tenant: requests arrive at random, queue, and take longer the smaller the online share is."""

    rate: Callable[[float], float]
    """Requests per second as a function of the time in seconds."""
    service_ns: float
    slo_ns: int
    spread: float = 0.2
    """Standard deviation of the logarithm of its service times."""
    yields: float = 1.0
    """Fraction of the allowed loss that it suffers: 1 is all of it."""
    slot: int = 0
    generation: int = 1
    rare: float = 0.0
    """Fraction of the requests that take five times as long at any share."""
    _next_ns: float = 0.0
    _free_ns: float = 0.0
    _ends: list[tuple[float, float]] = field(default_factory=list)

    def stretch(self, online_ppm: int) -> float:
        return 1 + self.yields * (WHOLE_PPM / online_ppm - 1)

    def window(self, begin_ns: int, online_ppm: int, rng: random.Random) -> TenantWindow:
        """Serve the requests of one period at this share."""
        end_ns, device_ns = begin_ns + PERIOD_NS, 0.0
        while self._next_ns < end_ns:
            arrival_ns = max(self._next_ns, begin_ns)
            alone_ns = self.service_ns * rng.lognormvariate(0, self.spread) * (5 if rng.random() < self.rare else 1)
            self._free_ns = max(self._free_ns, arrival_ns) + alone_ns * self.stretch(online_ppm)
            self._ends.append((self._free_ns, self._free_ns - arrival_ns))
            device_ns += alone_ns
            rate = self.rate(arrival_ns / 1e9)
            self._next_ns = arrival_ns + (rng.expovariate(rate) * 1e9 if rate else PERIOD_NS)
            if not rate:
                self._ends.pop()
        ended = [latency_ns for at_ns, latency_ns in self._ends if at_ns <= end_ns]
        waiting = [at_ns - latency_ns for at_ns, latency_ns in self._ends if at_ns > end_ns]
        self._ends = [end for end in self._ends if end[0] > end_ns]
        buckets: dict[int, int] = {}
        for latency_ns in ended:
            bucket = bucket_of(int(latency_ns))
            buckets[bucket] = buckets.get(bucket, 0) + 1
        return TenantWindow(
            self.slot,
            self.generation,
            online=True,
            slo_ns=self.slo_ns,
            requests=len(ended),
            over=sum(latency_ns > self.slo_ns for latency_ns in ended),
            sum_ns=int(sum(ended)),
            latencies=tuple(sorted(buckets.items())),
            active_ns=int(min(device_ns * self.stretch(online_ppm), PERIOD_NS)),
            device_ns=int(device_ns),
            oldest_ns=int(end_ns - min(waiting)) if waiting else 0,
        )


@dataclass
class Run:
    """A run of one device under control."""

    services: list[Service]
    limits: ControlLimits = field(default_factory=ControlLimits)
    seed: int = 0
    late: int = 0
    """Number of windows until a change takes effect."""
    offline: Callable[[float], bool] = lambda _: True
    before: Callable[[int], None] = lambda _: None
    """Called with the number of each window before it begins, to change settings meanwhile."""
    shares: list[int] = field(default_factory=list)
    steps: list[tuple[float, Adjustment]] = field(default_factory=list)
    windows: list[DeviceWindow] = field(default_factory=list)

    def go(self, seconds: float) -> "Run":
        rng, control = random.Random(self.seed), Control(self.limits)
        online_ppm = self.limits.max_online_ppm
        control.restore(0, online_ppm)
        in_force = [online_ppm] * (self.late + 1)
        for number in range(int(seconds * 1e9 / PERIOD_NS)):
            begin_ns = number * PERIOD_NS
            self.before(number)
            tenants = [service.window(begin_ns, in_force[0], rng) for service in self.services]
            busy_ns = min(sum(tenant.device_ns for tenant in tenants), PERIOD_NS)
            if self.offline(begin_ns / 1e9):
                spare_ns = (PERIOD_NS - busy_ns) // 2 + 1
                tenants.append(TenantWindow(9, 1, online=False, device_ns=spare_ns, waited_ns=PERIOD_NS // 2))
            window = DeviceWindow(0, begin_ns, begin_ns + PERIOD_NS, tuple(tenants))
            self.windows.append(window)
            change = control.on_window(window, window.end_ns)
            if change is not None:
                self.steps.append(((window.end_ns) / 1e9, change))
                online_ppm = change.online_ppm
            self.shares.append(online_ppm)
            in_force = [*in_force[1:], online_ppm] if self.late else [online_ppm]
        return self

    def attained(self, begin_s: float = 0.0, slot: int = 0) -> float:
        chosen = [t for w in self.windows if w.begin_ns >= begin_s * 1e9 for t in w.tenants if t.slot == slot]
        requests = sum(tenant.requests for tenant in chosen)
        return 1 - sum(tenant.over for tenant in chosen) / max(requests, 1)

    def turns(self, begin_s: float) -> int:
        """Return how often the share changed its direction after this time."""
        ups = [b - a for a, b in itertools.pairwise(self.shares)][int(begin_s * 1e9 / PERIOD_NS) :]
        signs = [step > 0 for step in ups if step]
        return sum(first != second for first, second in itertools.pairwise(signs))
