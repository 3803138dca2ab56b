"""Requests are detected from the launches and waits of a program's threads."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from tests.support.effort import examples

US, MS = 1_000, 1_000_000
KNOWN = 300
"""After so many requests as usual it is known where they end."""
pauses = st.lists(st.one_of(st.just(0), st.integers(0, 50 * US), st.integers(0, 100 * MS)), max_size=80)


class Host:
    """One thread that serves requests: pieces of launches with a wait after each, and a little to do between them."""

    def __init__(self, bursts: _native.Bursts, thread: int, pieces: int, rng: random.Random, *, polls: bool) -> None:
        self.bursts, self.thread, self.pieces, self.rng, self.polls = bursts, thread, pieces, rng, polls
        self.now_ns = 10**9
        self.truth: list[int] = []
        self.found: list[int] = []

    def serve(self, pause_ns: int) -> None:
        """After such a pause."""
        self.now_ns += pause_ns
        began_ns = self.now_ns
        for piece in range(self.pieces):
            self.now_ns += self.rng.randint(10 * US, 100 * US) if piece else 0
            for launch in range(3):
                self.found += self.bursts.launch(self.thread, 10 * piece + launch, self.now_ns)
                self.now_ns += 4 * US
            self._wait(self.rng.randint(200 * US, 3 * MS))
        self.truth.append(self.now_ns - began_ns)

    def _wait(self, took_ns: int) -> None:
        if self.polls:
            self.bursts.polled(self.thread, False, self.now_ns + took_ns // 2)
            self.now_ns += took_ns
            self.bursts.polled(self.thread, True, self.now_ns)
            self.bursts.polled(self.thread, True, self.now_ns + 2 * US)  # a second look ends nothing later
        else:
            self.now_ns += took_ns
            self.bursts.waited(self.thread, took_ns, self.now_ns)
            self.bursts.waited(self.thread, 100, self.now_ns + 2 * US)


def usual(rng: random.Random) -> Iterator[int]:
    """Requests arrive at random, so that some wait for others and are begun at once."""
    return (0 if rng.random() < 0.4 else int(rng.expovariate(1 / (8 * MS))) for _ in range(KNOWN))


@settings(max_examples=60, deadline=None)
@given(pauses, st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
def test_every_request_is_detected_for_any_pauses(then: list[int], pieces: int, polls: bool, seed: int) -> None:
    """Waits in the middle end nothing, and a request that follows at once is another one."""
    rng = random.Random(seed)
    host = Host(_native.Bursts(), 1, pieces, rng, polls=polls)
    for pause_ns in usual(rng):
        host.serve(pause_ns)
    known = len(host.found)
    assert known > KNOWN // 2
    host.serve(8 * MS)  # which ends the last of the usual ones
    found_before = len(host.found)
    for pause_ns in then:
        host.serve(pause_ns)
    host.serve(0)
    assert host.found[found_before:] == host.truth[KNOWN : KNOWN + 1 + len(then)]


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**32))
def test_requests_of_threads_are_separate(threads: int, seed: int) -> None:
    """One's requests end nobody else's, in whatever order they come: each is found as long as it was."""
    rng, bursts = random.Random(seed), _native.Bursts()
    events, truth = [], []
    for thread in range(1, threads + 1):
        now_ns = 10**9 + rng.randrange(MS)
        for _ in range(KNOWN):
            took_ns = rng.randint(MS, 20 * MS)
            events += [(now_ns, thread, 0), (now_ns + 5 * US, thread, 0), (now_ns + took_ns, thread, took_ns)]
            truth.append(took_ns)
            now_ns += took_ns + MS + int(rng.expovariate(1 / (20 * MS)))
    found = []
    for now_ns, thread, took_ns in sorted(events):
        if took_ns:
            bursts.waited(thread, took_ns, now_ns)
        else:
            found += bursts.launch(thread, thread, now_ns)
    assert len(found) >= len(truth) - threads - 5 * _native.FIRST_BURSTS
    assert len(set(found) - set(truth)) <= 2 * _native.FIRST_BURSTS, "while it is learned, two may be taken for one"


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
def test_request_is_not_longer_than_elapsed_time(made: list[tuple[str, int, int, int]]) -> None:
    """More threads than are followed, waits without launches, instants that stand still: nothing breaks."""
    bursts, now_ns = _native.Bursts(), 1
    sums: list[int] = []
    for what, thread, launch, passed_ns in made:
        now_ns += passed_ns
        if what == "launch":
            sums += bursts.launch(thread, launch, now_ns)
        elif what == "waited":
            bursts.waited(thread, passed_ns, now_ns)
        else:
            bursts.polled(thread, what == "done", now_ns)
        assert bursts.oldest() <= now_ns
    assert all(0 <= latency < now_ns for latency in sums)
    assert len(sums) <= sum(what == "launch" for what, *_ in made)


def test_request_of_a_thread_that_ends_is_detected() -> None:
    bursts, now_ns, found = _native.Bursts(), 10**9, []
    for number in range(400):
        thread = 1 + number
        found += bursts.launch(thread, 7, now_ns)
        found += bursts.launch(thread, 8, now_ns + 10 * US)
        bursts.waited(thread, MS, now_ns + 2 * MS)
        now_ns += 20 * MS
    assert len(found) > 200
    assert set(found) == {2 * MS}


def test_waiting_thread_ends_a_request_of_another_thread() -> None:
    bursts, now_ns, found = _native.Bursts(), 10**9, []
    for _ in range(100):
        found += bursts.launch(1, 7, now_ns)
        bursts.waited(2, 3 * MS, now_ns + 3 * MS)
        now_ns += 10 * MS
    assert found == [3 * MS] * (100 - 1 - _native.FIRST_BURSTS)


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
