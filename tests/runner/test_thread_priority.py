"""A thread raises its own scheduling priority and leaves threads that it starts unchanged."""

from __future__ import annotations

import os
import threading

import pytest

from cotenant.runner.thread_priority import request_low_latency

pytestmark = pytest.mark.live


def nices() -> tuple[int, int, int]:
    """Of a thread before and after, and of one that it starts."""
    found: list[int] = []

    def look() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def be() -> None:
        look()
        request_low_latency()
        look()
        started = threading.Thread(target=look)
        started.start()
        started.join()

    thread = threading.Thread(target=be)
    thread.start()
    thread.join()
    before, after, of_the_started = found
    return before, after, of_the_started


def test_only_the_calling_thread_is_raised() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before, after, of_the_started = nices()
    assert after == (max(before - 5, -20) if os.geteuid() == 0 else before)
    assert of_the_started == max(before, 0) if after < 0 else of_the_started == after
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_explicit_scheduling_policy_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getscheduler", lambda _pid: os.SCHED_BATCH)
    before, after, _ = nices()
    assert before == after
