"""Requests are detected from the launches and waits of a program's threads."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from tests.support.effort import examples

US, MS = 1_000, 1_000_000
LEARNING_REQUESTS = 300
"""Number of requests after which the detector knows where requests end."""
pauses = st.lists(st.one_of(st.just(0), st.integers(0, 50 * US), st.integers(0, 100 * MS)), max_size=80)


class Host:
    """One thread that serves requests: phases of launches with a wait after each, and a little host work between."""

    def __init__(self, bursts: _native.Bursts, thread: int, phases: int, rng: random.Random, *, polls: bool) -> None:
        self.bursts, self.thread, self.phases, self.rng, self.polls = bursts, thread, phases, rng, polls
        self.now_ns = 10**9
        self.truth: list[int] = []
        self.detected: list[int] = []

    def serve(self, pause_ns: int) -> None:
        """Serve one request after a pause."""
        self.now_ns += pause_ns
        began_ns = self.now_ns
        for phase in range(self.phases):
            self.now_ns += self.rng.randint(10 * US, 100 * US) if phase else 0
            for launch in range(3):
                self.detected += self.bursts.launch(self.thread, 10 * phase + launch, self.now_ns)
                self.now_ns += 4 * US
            self._wait(self.rng.randint(200 * US, 3 * MS))
        self.truth.append(self.now_ns - began_ns)

    def _wait(self, took_ns: int) -> None:
        if self.polls:
            self.bursts.polled(self.thread, False, self.now_ns + took_ns // 2)
            self.now_ns += took_ns
            self.bursts.polled(self.thread, True, self.now_ns)
            self.bursts.polled(self.thread, True, self.now_ns + 2 * US)  # a second poll does not move the end
        else:
            self.now_ns += took_ns
            self.bursts.waited(self.thread, took_ns, self.now_ns)
            self.bursts.waited(self.thread, 100, self.now_ns + 2 * US)


def usual_pauses(rng: random.Random) -> Iterator[int]:
    """Yield pauses of random arrivals, so that some requests wait for others and then begin at once."""
    return (0 if rng.random() < 0.4 else int(rng.expovariate(1 / (8 * MS))) for _ in range(LEARNING_REQUESTS))


@settings(max_examples=60, deadline=None)
@given(pauses, st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
def test_every_request_is_detected_for_any_pauses(later_pauses: list[int], phases: int, polls: bool, seed: int) -> None:
    """Waits within a request do not end it, and a request that follows at once is separate."""
    rng = random.Random(seed)
    host = Host(_native.Bursts(), 1, phases, rng, polls=polls)
    for pause_ns in usual_pauses(rng):
        host.serve(pause_ns)
    learned = len(host.detected)
    assert learned > LEARNING_REQUESTS // 2
    host.serve(8 * MS)  # ends the last of the learning requests
    detected_before = len(host.detected)
    for pause_ns in later_pauses:
        host.serve(pause_ns)
    host.serve(0)
    assert host.detected[detected_before:] == host.truth[LEARNING_REQUESTS : LEARNING_REQUESTS + 1 + len(later_pauses)]


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**32))
def test_requests_of_threads_are_separate(threads: int, seed: int) -> None:
    """Requests of one thread do not end those of another: each is detected with its duration."""
    rng, bursts = random.Random(seed), _native.Bursts()
    events, truth = [], []
    for thread in range(1, threads + 1):
        now_ns = 10**9 + rng.randrange(MS)
        for _ in range(LEARNING_REQUESTS):
            took_ns = rng.randint(MS, 20 * MS)
            events += [(now_ns, thread, 0), (now_ns + 5 * US, thread, 0), (now_ns + took_ns, thread, took_ns)]
            truth.append(took_ns)
            now_ns += took_ns + MS + int(rng.expovariate(1 / (20 * MS)))
    detected = []
    for now_ns, thread, took_ns in sorted(events):
        if took_ns:
            bursts.waited(thread, took_ns, now_ns)
        else:
            detected += bursts.launch(thread, thread, now_ns)
    assert len(detected) >= len(truth) - threads - 5 * _native.FIRST_BURSTS
    assert len(set(detected) - set(truth)) <= 2 * _native.FIRST_BURSTS, "during learning, two may be taken for one"


calls = st.lists(
    st.tuples(
        st.sampled_from(["launch", "waited", "done", "busy"]),
        st.integers(0, 70),
        st.integers(0, 5),
        st.one_of(st.integers(0, 100 * US), st.integers(0, 10**12)),
    ),
    max_size=300,
)


@settings(max_examples=examples(50, 1000), deadline=None)
@given(calls)
def test_request_is_not_longer_than_elapsed_time(events: list[tuple[str, int, int, int]]) -> None:
    """Includes more threads than are tracked, waits without launches, and equal instants."""
    bursts, now_ns = _native.Bursts(), 1
    latencies: list[int] = []
    for kind, thread, launch, passed_ns in events:
        now_ns += passed_ns
        if kind == "launch":
            latencies += bursts.launch(thread, launch, now_ns)
        elif kind == "waited":
            bursts.waited(thread, passed_ns, now_ns)
        else:
            bursts.polled(thread, kind == "done", now_ns)
        assert bursts.oldest() <= now_ns
    assert all(0 <= latency < now_ns for latency in latencies)
    assert len(latencies) <= sum(kind == "launch" for kind, *_ in events)


def test_request_of_a_thread_that_ends_is_detected() -> None:
    bursts, now_ns, detected = _native.Bursts(), 10**9, []
    for number in range(400):
        thread = 1 + number
        detected += bursts.launch(thread, 7, now_ns)
        detected += bursts.launch(thread, 8, now_ns + 10 * US)
        bursts.waited(thread, MS, now_ns + 2 * MS)
        now_ns += 20 * MS
    assert len(detected) > 200
    assert set(detected) == {2 * MS}


def test_waiting_thread_ends_a_request_of_another_thread() -> None:
    bursts, now_ns, detected = _native.Bursts(), 10**9, []
    for _ in range(100):
        detected += bursts.launch(1, 7, now_ns)
        bursts.waited(2, 3 * MS, now_ns + 3 * MS)
        now_ns += 10 * MS
    assert detected == [3 * MS] * (100 - 1 - _native.FIRST_BURSTS)


def test_request_is_in_progress_until_a_wait() -> None:
    bursts, now_ns = _native.Bursts(), 10**9
    for _ in range(_native.FIRST_BURSTS + 1):
        bursts.launch(1, 7, now_ns)
        assert bursts.oldest() == 0, "a program that never waits has no request that could be late"
        bursts.waited(1, MS, now_ns + MS)
        now_ns += 10 * MS
    bursts.launch(1, 7, now_ns)
    bursts.launch(2, 7, now_ns + 5)
    assert bursts.oldest() == now_ns
    bursts.waited(1, 10, now_ns + MS)
    assert bursts.oldest() == now_ns + 5
    bursts.waited(2, 10, now_ns + MS)
    assert bursts.oldest() == 0
