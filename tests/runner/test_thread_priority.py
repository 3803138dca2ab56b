"""A thread raises its own scheduling priority and leaves threads that it starts unchanged."""

from __future__ import annotations

import os
import threading

import pytest

from cotenant.runner.thread_priority import request_low_latency

pytestmark = pytest.mark.live


def nice_values() -> tuple[int, int, int]:
    """Return the nice values of a thread before and after its request, and of a thread that it starts."""
    values: list[int] = []

    def record() -> None:
        values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def run() -> None:
        record()
        request_low_latency()
        record()
        child = threading.Thread(target=record)
        child.start()
        child.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    before, after, of_started = values
    return before, after, of_started


def test_only_the_calling_thread_gets_a_higher_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before, after, of_started = nice_values()
    assert after == (max(before - 5, -20) if os.geteuid() == 0 else before)
    assert of_started == max(before, 0) if after < 0 else of_started == after
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_explicit_scheduling_policy_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getscheduler", lambda _pid: os.SCHED_BATCH)
    before, after, _ = nice_values()
    assert before == after
