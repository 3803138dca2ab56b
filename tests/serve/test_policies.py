"""FIFO and the admission policies."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.serve.model.event import ModelSpec, QueuedRequest
from cotenant.serve.model.scheduling import StartRun, View, WaitUntil, assemble
from cotenant.serve.policy import policy_class
from cotenant.serve.policy.admit import ADMISSION_POLICIES
from cotenant.serve.state.model_queue import ModelQueueState


def queue(key: int, *rows: int, since: int = 0, **overrides: Any) -> ModelQueueState:
    fields: dict[str, Any] = {"max_batch": 4, **overrides}
    model_queue = ModelQueueState(key, ModelSpec(f"m{key}", "1", "test", (), (), **fields))
    for index, count in enumerate(rows):
        model_queue.add(QueuedRequest(10 * key + index, count, 0, 1, since, -1))
    return model_queue


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(0, 4))
def test_batch_is_the_longest_prefix_that_fits(rows: list[int], limit: int) -> None:
    model_queue = queue(1, *rows, max_batch=limit)
    count, total = assemble(model_queue)
    assert total == sum(rows[:count])
    if limit:
        assert count == 1 or total <= limit
        assert count == len(rows) or count == limit or total + rows[count] > limit
    else:
        assert count == 1


def test_fifo_starts_the_oldest_request_that_fits() -> None:
    fifo = policy_class("fifo")().next
    wide, late, soon = queue(1, 1, since=1, share=2), queue(2, 1, since=3), queue(3, 2, 2, since=2)
    assert fifo(View([wide, late, soon], 2, 2, 5, 5)) == StartRun(1, 1, 1, 2)
    assert fifo(View([wide, late, soon], 1, 2, 5, 5)) == StartRun(3, 2, 4, 1)
    assert fifo(View([late], 0, 2, 9, 5)) is None
    assert fifo(View([queue(1, 1, since=4, wait_ns=10)], 1, 2, 5, 5)) == WaitUntil(14)


def test_deadline_admission_counts_all_queued_requests() -> None:
    model_queue, other = queue(1, 4, 4), queue(2, 1, share=2)
    model_queue.learn(4, 1, 100)
    other.learn(1, 2, 30)
    deadline = ADMISSION_POLICIES["deadline"]
    assert deadline(View([model_queue, other], 0, 1, 50, 10), model_queue, 4) == 40 + 200 + 60 + 100
    assert deadline(View([model_queue, other], 2, 2, 10, 10), model_queue, 4) == (200 + 60) // 2 + 100
    assert ADMISSION_POLICIES["accept-all"](View([model_queue, other], 0, 1, 50, 10), model_queue, 4) == 0
