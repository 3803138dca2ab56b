"""Is what a server wrote of its requests read as it was, and drawn in lanes that hold?"""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.serve_lanes import lay_out_all
from cotenant.domain.trace import End, Recording, Served, ServedRequest
from cotenant.format import spans
from cotenant.format.traceevents import trace_events
from tests.traceevents import check

NAMES = ["a", "b"]


@st.composite
def requests(draw: st.DrawFn) -> ServedRequest:
    times = sorted(draw(st.lists(st.integers(1, 10_000), min_size=5, max_size=5)))
    end = draw(st.sampled_from(End))
    if end is End.REFUSED:
        times[1:4] = [0, 0, 0]
    run = 0 if end is End.REFUSED else draw(st.integers(0, 5))
    core = draw(st.integers(-1, 2)) if run else -1
    model = draw(st.sampled_from(NAMES))
    return ServedRequest(end, model, draw(st.integers(1, 9)), draw(st.integers(0, 99)), run, 1, core, *times)


def record_of(one: ServedRequest) -> bytes:
    run = one.run | (one.core + 1) << spans.CORE_SHIFT
    times = (one.arrived_ns, one.chosen_ns, one.began_ns, one.ended_ns, one.answered_ns)
    return spans.RECORD.pack(one.end, one.units, NAMES.index(one.model), one.rows, one.number, *times, run)


@given(st.lists(requests(), max_size=8))
def test_records_are_read_as_they_were(told: list[ServedRequest]) -> None:
    assert spans.requests_of(b"".join(map(record_of, told)), NAMES) == told


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_passed_over(garbage: bytes) -> None:
    assert len(spans.requests_of(garbage, NAMES)) <= len(garbage) // spans.RECORD.size
    assert spans.fetch_spans(lambda at, length: garbage[at : at + length], 0).records == b""


@given(st.lists(requests(), max_size=30), st.integers(0, 9_000), st.integers(1, 5_000))
def test_lanes_never_overlap_and_nobody_is_left_out(told: list[ServedRequest], start_ns: int, length_ns: int) -> None:
    recording = Recording(start_ns, start_ns + length_ns, 10**18, servers=(Served(7, told),))
    groups = lay_out_all(recording)
    check(b"".join(trace_events(groups, start_ns, {})))
    lanes = [lane for group in groups for lane in group.lanes if lane.name.startswith("requests")]
    drawn = sum(one.end_ns - one.start_ns for lane in lanes for one in lane.slices)
    end_ns = start_ns + length_ns
    within = (min(one.answered_ns, end_ns) - max(one.arrived_ns, start_ns) for one in told)
    assert drawn == sum(max(one, 0) for one in within)


def test_more_requests_than_lanes_are_counted() -> None:
    one = ServedRequest(End.ANSWERED, "a", 1, 1, 1, 1, 0, 1, 2, 3, 4, 5)
    told = [msgspec.structs.replace(one, number=number) for number in range(100)]
    (group,) = lay_out_all(Recording(0, 10, 10**18, servers=(Served(7, told),)))
    assert group.lanes[-1].name == "requests, 64 (and 36 that found no lane)"
