"""Of the intervals between a host's launches, does about the ninth part fall short of what is forecast?"""

import random
from collections.abc import Callable

import pytest

from cotenant import _native

Draw = Callable[[random.Random], float]

STEADY: dict[str, Draw] = {
    "narrow": lambda chance: chance.uniform(0.9e6, 1.1e6),
    "normal": lambda chance: max(chance.gauss(1e6, 1e5), 1),
    "poisson": lambda chance: chance.expovariate(1e-6),
    "lognormal": lambda chance: chance.lognormvariate(13, 0.5),
    "long-tailed": lambda chance: chance.lognormvariate(13, 1),
    "two kinds": lambda chance: chance.choice([1e5, 1e6]) * chance.uniform(0.9, 1.1),
}
NINTH = (0.07, 0.15)


def share_below(forecast: _native.Forecast, chance: random.Random, draw: Draw, scale: float = 1.0) -> float:
    """Each interval is held against what was forecast before it was seen."""
    for _ in range(300):
        forecast.learn(int(scale * draw(chance)))
    below, count = 0, 4000
    for _ in range(count):
        interval_ns = int(scale * draw(chance))
        below += interval_ns < forecast.low_ns
        forecast.learn(interval_ns)
    return below / count


@pytest.mark.parametrize("name", STEADY)
def test_about_the_ninth_part_comes_before_the_forecast(name: str) -> None:
    """From the start, after a slow start, and after the host's pauses grew longer or shorter."""
    forecast, chance = _native.Forecast(), random.Random(name)
    for _ in range(3):
        forecast.learn(10**9)
    for scale in (1.0, 30.0, 0.2, 3.0):
        share = share_below(forecast, chance, STEADY[name], scale)
        assert NINTH[0] <= share <= NINTH[1], scale
        assert forecast.low_ns <= forecast.high_ns


@pytest.mark.parametrize("factor", [4, 20, 1000])
def test_a_host_whose_pauses_grew_longer_is_followed_after_a_dozen(factor: int) -> None:
    forecast, chance = _native.Forecast(), random.Random(1)
    for _ in range(200):
        forecast.learn(int(STEADY["narrow"](chance)))
    for number in range(12):
        assert forecast.low_ns <= 1.1e6 * 1.01**number
        forecast.learn(int(factor * STEADY["narrow"](chance)))
    assert 0.4e6 * factor <= forecast.low_ns <= 1.1e6 * factor


def test_a_slow_start_does_not_last() -> None:
    forecast = _native.Forecast()
    for interval_ns in (10**9, 10**9, 10**6):
        forecast.learn(interval_ns)
    assert forecast.low_ns <= 10**6
