"""About one ninth of a host's intervals between launches is shorter than the forecast."""

import random
from collections.abc import Callable

import pytest

from cotenant import _native

Draw = Callable[[random.Random], float]

STEADY: dict[str, Draw] = {
    "narrow": lambda rng: rng.uniform(0.9e6, 1.1e6),
    "normal": lambda rng: max(rng.gauss(1e6, 1e5), 1),
    "poisson": lambda rng: rng.expovariate(1e-6),
    "lognormal": lambda rng: rng.lognormvariate(13, 0.5),
    "long-tailed": lambda rng: rng.lognormvariate(13, 1),
    "two kinds": lambda rng: rng.choice([1e5, 1e6]) * rng.uniform(0.9, 1.1),
}
NINTH = (0.07, 0.15)


def share_below(forecast: _native.Forecast, rng: random.Random, draw: Draw, scale: float = 1.0) -> float:
    """Each interval is compared with the forecast that was made before it."""
    for _ in range(300):
        forecast.learn(int(scale * draw(rng)))
    below, count = 0, 4000
    for _ in range(count):
        interval_ns = int(scale * draw(rng))
        below += interval_ns < forecast.low_ns
        forecast.learn(interval_ns)
    return below / count


@pytest.mark.parametrize("name", STEADY)
def test_one_ninth_of_intervals_is_shorter_than_the_forecast(name: str) -> None:
    """From the start, after a slow start, and after the host's pauses grew longer or shorter."""
    forecast, rng = _native.Forecast(), random.Random(name)
    for _ in range(3):
        forecast.learn(10**9)
    for scale in (1.0, 30.0, 0.2, 3.0):
        share = share_below(forecast, rng, STEADY[name], scale)
        assert NINTH[0] <= share <= NINTH[1], scale
        assert forecast.low_ns <= forecast.high_ns


@pytest.mark.parametrize("factor", [4, 20, 1000])
def test_forecast_follows_longer_pauses_after_twelve_intervals(factor: int) -> None:
    forecast, rng = _native.Forecast(), random.Random(1)
    for _ in range(200):
        forecast.learn(int(STEADY["narrow"](rng)))
    for number in range(12):
        assert forecast.low_ns <= 1.1e6 * 1.01**number
        forecast.learn(int(factor * STEADY["narrow"](rng)))
    assert 0.4e6 * factor <= forecast.low_ns <= 1.1e6 * factor


def test_slow_first_intervals_are_forgotten() -> None:
    forecast = _native.Forecast()
    for interval_ns in (10**9, 10**9, 10**6):
        forecast.learn(interval_ns)
    assert forecast.low_ns <= 10**6


def step_of(low: int, high: int, interval: int) -> tuple[int, int]:
    """Return both quantiles after an interval that is less than twice the lower one, as decisions one by one."""
    if interval < low:
        low -= low >> 4
    else:
        low = min(low + (low >> 7) + 1, interval)
    high = min(high + (high >> 4) + 1, interval) if interval > high else max(high - (high >> 7), interval)
    return low, high


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_move_by_the_stated_steps(seed: int) -> None:
    forecast, rng = _native.Forecast(), random.Random(seed)
    for _ in range(17):
        forecast.learn(rng.randrange(1000, 1900))
    for _ in range(2000):
        low, high = forecast.low_ns, forecast.high_ns
        interval = rng.randrange(max(low // 4, 1), 2 * low)
        forecast.learn(interval)
        assert (forecast.low_ns, forecast.high_ns) == step_of(low, high, interval)
