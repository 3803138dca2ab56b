"""A server's request records are read unchanged and laid out in tracks without overlap."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cotenant.serve import span_format as spans
from cotenant.trace.recording import Recording, RequestEnd, ServedRequest, ServerRecording
from cotenant.trace.server_tracks import build_all_tracks
from cotenant.trace.trace_events import trace_events
from tests.support.trace_event_rules import check

NAMES = ["a", "b"]


@st.composite
def requests(draw: st.DrawFn) -> ServedRequest:
    times = sorted(draw(st.lists(st.integers(1, 10_000), min_size=5, max_size=5)))
    end = draw(st.sampled_from(RequestEnd))
    if end is RequestEnd.REFUSED:
        times[1:4] = [0, 0, 0]
    run = 0 if end is RequestEnd.REFUSED else draw(st.integers(0, 5))
    core = draw(st.integers(-1, 2)) if run else -1
    model = draw(st.sampled_from(NAMES))
    return ServedRequest(end, model, draw(st.integers(1, 9)), draw(st.integers(0, 99)), run, 1, core, *times)


def record_of(request: ServedRequest) -> bytes:
    run = request.run | (request.core + 1) << spans.CORE_SHIFT
    times = (request.arrived_ns, request.chosen_ns, request.began_ns, request.ended_ns, request.answered_ns)
    return spans.RECORD.pack(
        request.end, request.units, NAMES.index(request.model), request.rows, request.number, *times, run
    )


@given(st.lists(requests(), max_size=8))
def test_records_round_trip(records: list[ServedRequest]) -> None:
    assert spans.requests_of(b"".join(map(record_of, records)), NAMES) == records


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_skipped(garbage: bytes) -> None:
    assert len(spans.requests_of(garbage, NAMES)) <= len(garbage) // spans.RECORD.size
    assert spans.fetch_spans(lambda at, length: garbage[at : at + length], 0).records == b""


@given(st.lists(requests(), max_size=30), st.integers(0, 9_000), st.integers(1, 5_000))
def test_tracks_never_overlap_and_contain_every_request(
    records: list[ServedRequest], start_ns: int, length_ns: int
) -> None:
    recording = Recording(start_ns, start_ns + length_ns, 10**18, servers=(ServerRecording(7, records),))
    groups = build_all_tracks(recording)
    check(b"".join(trace_events(groups, start_ns, {})))
    tracks = [track for group in groups for track in group.tracks if track.name.startswith("requests")]
    drawn = sum(slice_.end_ns - slice_.start_ns for track in tracks for slice_ in track.slices)
    end_ns = start_ns + length_ns
    visible_ns = (min(request.answered_ns, end_ns) - max(request.arrived_ns, start_ns) for request in records)
    assert drawn == sum(max(span_ns, 0) for span_ns in visible_ns)


def test_requests_beyond_the_tracks_are_counted() -> None:
    request = ServedRequest(RequestEnd.ANSWERED, "a", 1, 1, 1, 1, 0, 1, 2, 3, 4, 5)
    records = [msgspec.structs.replace(request, number=number) for number in range(100)]
    (group,) = build_all_tracks(Recording(0, 10, 10**18, servers=(ServerRecording(7, records),)))
    assert group.tracks[-1].name == "requests, 64 (and 36 more without a track)"
