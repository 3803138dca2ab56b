"""Tests that time is counted in which a processor does not run its sleeper."""

from __future__ import annotations

import os

import pytest

from cotenant_lab.programs import stalls

pytestmark = pytest.mark.live

MS = 10**6


def test_only_long_delays_count_and_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps of 2 ms that end in time, 1 ms late, 55 ms late, 5 ms late and 6 ms late."""
    naps_ns = [2 * MS, 3 * MS, 57 * MS, 7 * MS, 8 * MS]
    now_ns = 0
    counted = stalls.Stalls()
    looks = [stalls.LostTime(0, dict.fromkeys(os.sched_getaffinity(0), 0))]

    def sleep(seconds: float) -> None:
        nonlocal now_ns
        assert seconds * 1e9 == 2 * MS
        sleep_ns = naps_ns.pop(0)
        now_ns += sleep_ns // 3
        looks.append(counted.lost_time())
        now_ns += sleep_ns - sleep_ns // 3
        if not naps_ns:
            counted._end.set()

    monkeypatch.setattr(stalls, "pause", sleep)
    monkeypatch.setattr(stalls, "monotonic_ns", lambda: now_ns)
    [cpu, *_] = os.sched_getaffinity(0)
    allowed = os.sched_getaffinity(0)
    counted._sleep(cpu)
    os.sched_setaffinity(0, allowed)
    assert [lost_time.lost_ns[cpu] // MS for lost_time in looks] == [
        0,
        0,
        0,
        17,
        55,
        55,
    ]  # a sleep in progress counts until now
    assert looks[4].since_pct(looks[3]) == pytest.approx(100 * 38 / (looks[4].at_ns - looks[3].at_ns) * MS)
    assert looks[5].since_pct(looks[4]) == 0
    lost_ns = counted.lost_time().lost_ns
    assert lost_ns.pop(cpu) == 61 * MS
    assert set(lost_ns.values()) <= {0}


def test_each_processor_has_a_sleeper_and_affinity_is_kept() -> None:
    allowed = os.sched_getaffinity(0)
    counted = stalls.Stalls()
    counted.begin()
    counted.end()
    assert set(counted.lost_time().lost_ns) == allowed
    assert os.sched_getaffinity(0) == allowed
