"""Tests of the demo's HTML page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant import __version__
from cotenant.cli.demo.sharing import PHASES, WINDOW_NS, last_of, ran_spans, timeline_window
from cotenant.cli.demo.workloads import CHANGING_LOAD_S, MAX_RATE_PER_S, changing_service, rate_at, service, training
from cotenant.cli.render.html.changing_load import (
    ChangingLoad,
    ChangingLoadRun,
    changing_load_chart,
    changing_load_rows,
)
from cotenant.cli.render.html.charts import bars, curves, ticks, timeline_chart
from cotenant.cli.render.html.demo import report_page
from cotenant.cli.render.html.phase import PhaseResult, TimelineWindow
from cotenant.errors import WorldError
from cotenant.runner.machine import MachineState
from cotenant.trace.recording import ContextSwitch, Device, DeviceOp, DeviceOpKind, Recording

pytestmark = pytest.mark.live

MS = 1_000_000
IDLE = MachineState(1_700_000_000 * 10**9, "Test <CPU>", 4, 0.3)
BUSY = MachineState(1_700_000_000 * 10**9, "Test <CPU>", 4, 3.5)


def phase(name: str, latencies_ns: list[int]) -> PhaseResult:
    timeline = TimelineWindow(
        0, WINDOW_NS, [(5 * MS, 9 * MS)], [(MS, 2 * MS)] * 3, [(at * MS, at * MS + 9) for at in range(20)]
    )
    return PhaseResult(
        name=name,
        requests=len(latencies_ns),
        requests_per_s=60.0,
        p50_ns=latencies_ns[len(latencies_ns) // 2],
        p99_ns=latencies_ns[-1],
        max_ns=latencies_ns[-1],
        latencies_ns=latencies_ns,
        steps_per_s=20.0,
        busy=0.5,
        sm_activity=0.4,
        waited_ns=3 * MS,
        timeline=timeline,
    )


class OpenTags(HTMLParser):
    """Collects the elements that are opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in ("svg", "text", "polyline", "title", "table", "h2", "p"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag == self.open[-1]:
            self.open.pop()


def changing_load(name: str) -> ChangingLoad:
    """Five requests within a second, and a share that changes once."""
    run = ChangingLoadRun(
        name=name,
        number=1,
        requests=[(index * 200 * MS, (index + 1) * MS) for index in range(5)],
        shares=[(0, 980_000), (500 * MS, 400_000)],
        paces=[(0, 500 * MS, 0.1), (500 * MS, 1000 * MS, 1.2)],
        attained=0.6,
        p99_ns=5 * MS,
        training=0.65,
    )
    return ChangingLoad(slo_ns=3 * MS, span_ns=1000 * MS, parts=[(0, "<i>"), (500 * MS, "later")], runs=[run])


def test_page_closes_all_elements_and_escapes_names() -> None:
    phases = [phase("<script>", [MS, 2 * MS]), phase("other", [MS] * 500)]
    page = report_page(phases, changing_load("<script>"), service(10, 0), training(), 29.5, "", IDLE)
    parser = OpenTags()
    parser.feed(page)
    assert parser.open == []
    assert "<script>" not in page
    assert "No trace was written" in page
    assert page.count("<svg") == 5


def test_a_report_begins_with_its_conclusion_and_its_origin() -> None:
    phases = [phase("alone", [MS, 2 * MS]), phase("MPS", [MS, 9 * MS]), phase("cotenant", [MS, 3 * MS])]
    for machine in (IDLE, BUSY):
        page = report_page(phases, changing_load("cotenant"), service(10, 0), training(), 40.0, "", machine)
        body = page.split("</style>")[1]
        texts = re.findall(r"<p[^>]*>([^<]*)</p>", body)
        assert texts[0] == (
            "Alone, the service&#x27;s p99 latency was 2ms. With the training job next to it, the p99 latency and the "
            "training&#x27;s part of its speed alone were 9ms and 50% under MPS; 3ms and 50% under cotenant."
        )
        assert f"2023-11-14 22:13 UTC by cotenant {__version__} on 4 cores of Test &lt;CPU&gt;" in texts[1]
        assert f"load average of the minute before: {machine.load}" in texts[1]
        assert ("figures are unreliable" in body) is (machine is BUSY)


def test_every_table_of_a_report_can_scroll_and_every_mark_has_a_value() -> None:
    phases = [phase("alone", [MS, 2 * MS]), phase("cotenant", [MS, 3 * MS])]
    page = report_page(phases, changing_load("cotenant"), service(10, 0), training(), 40.0, "", IDLE)
    assert page.count("<table>") == page.count("<div class=scroll tabindex=0><table>") == 2
    assert not re.findall(r"<rect[^>]*/>", page)
    assert "cotenant: 100% of the requests within 3.00 ms" in page
    assert "training: 0.000 ms from 5.000 ms" in page


def test_every_series_has_a_style() -> None:
    phases = [phase(str(number), [MS, 2 * MS]) for number in range(len(PHASES))]
    page = report_page(phases, changing_load("cotenant"), service(10, 0), training(), 29.5, "", IDLE)
    for used in set(re.findall(r"class='(curve|bar|key|dot) series(\d)'", page)):
        assert f".{used[0]}.series{used[1]}" in page.split("</style>")[0]


def test_changing_load_draws_each_request_and_each_share() -> None:
    svg = changing_load_chart(changing_load("cotenant"))
    assert svg.count("<circle class='dot") == 5
    assert "<title>cotenant: 40 % from 0.50 s on</title>" in svg
    (share,) = re.findall(r"<polyline class='curve series1' points='([^']*)' />", svg)[:1]
    xs, ys = zip(*(map(float, point.split(",")) for point in share.split()), strict=True)
    assert list(xs) == sorted(xs)
    assert ys[0] == ys[1] < ys[2] == ys[3]
    assert changing_load_rows(changing_load("cotenant")) == [("cotenant", "60.0%", "5ms", "65%")]


def test_changing_load_arrivals_follow_the_rates() -> None:
    load = changing_service(3)
    instants_ns = load.arrival.instants_ns
    assert load.requests == len(instants_ns)
    assert changing_service(3) == load != changing_service(4)
    by_part = [
        sum(begin <= at_ns / 1e9 < end for at_ns in instants_ns) / (end - begin)
        for begin, end in ((0.0, 2.0), (2.0, 4.0), (4.0, 5.5), (5.5, 6.1), (9.0, 11.0), (12.5, CHANGING_LOAD_S))
    ]
    quiet, up, down, burst, noon, night = by_part
    assert max(quiet, down, night) < min(up, noon) < burst
    assert all(rate_at(tenth / 10) <= MAX_RATE_PER_S for tenth in range(round(10 * CHANGING_LOAD_S)))


def op(pid: int, client: int, start_ms: int, end_ms: int, kind: DeviceOpKind = DeviceOpKind.KERNEL) -> DeviceOp:
    return DeviceOp(kind, pid, client, 0, start_ms * MS, start_ms * MS, start_ms * MS, end_ms * MS, 0)


def recording(rows: list[DeviceOp], switches: list[ContextSwitch]) -> Recording:
    return Recording(0, 200 * MS, 0, (), (Device(0, "test device", rows, switches),))


def test_the_timeline_is_the_window_with_most_service_activity() -> None:
    rows = [
        op(1, 0, 10, 11),
        op(1, 0, 60, 63),
        op(1, 0, 64, 65),
        op(2, 1, 0, 200),
        op(1, 0, 61, 99, DeviceOpKind.HOST),
    ]
    requests = [(10 * MS, 11 * MS), (60 * MS, 65 * MS)]
    timeline = timeline_window(recording(rows, []), (1, 2), requests)
    assert (timeline.begin_ns, timeline.end_ns) == (58 * MS, 58 * MS + WINDOW_NS)
    assert timeline.requests == [(60 * MS, 65 * MS)]
    assert timeline.online == [(60 * MS, 63 * MS), (64 * MS, 65 * MS)]
    assert timeline.offline == [(0, 200 * MS)]
    with pytest.raises(WorldError):
        timeline_window(recording(rows, []), (3, 0), requests)


def test_ran_spans_exclude_the_time_a_kernel_was_switched_out() -> None:
    switches = [
        ContextSwitch(1, 3 * MS, is_on=False),
        ContextSwitch(0, 4 * MS, is_on=False),
        ContextSwitch(1, 5 * MS, is_on=True),
    ]
    assert ran_spans(recording([op(2, 1, 1, 8)], switches), 2) == [(1 * MS, 3 * MS), (5 * MS, 8 * MS)]
    assert ran_spans(recording([op(2, 1, 1, 4)], switches[:1]), 2) == [(1 * MS, 3 * MS)]
    assert ran_spans(recording([op(2, 1, 5, 8)], switches), 2) == [(5 * MS, 8 * MS)]


def test_last_of_returns_the_end_of_a_recording() -> None:
    end = last_of(recording([op(1, 0, 10, 11), op(1, 0, 190, 191)], [ContextSwitch(0, 5, is_on=True)]), 20 * MS)
    assert end.start_ns == 180 * MS
    assert [op.start_ns for op in end.devices[0].ops] == [190 * MS]
    assert end.devices[0].switches == []


@given(st.integers(1, 10**10), st.integers(1, 10**10))
def test_ticks_lie_within_the_bounds_and_are_round(first: int, second: int) -> None:
    low, high = sorted((first, second))
    values = ticks(low, high)
    assert values == sorted(set(values))
    assert all(low <= tick <= high and re.fullmatch("[125]0*", str(tick)) for tick in values)


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=300).map(sorted), min_size=1, max_size=3))
def test_curves_rise_and_stay_inside_the_chart(latencies: list[list[int]]) -> None:
    svg = curves([phase(str(number), latencies_ns) for number, latencies_ns in enumerate(latencies)])
    lines = re.findall("points='([^']*)'", svg)
    assert len(lines) == len(latencies)
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert points == sorted(points, key=lambda point: (point[0], -point[1]))
        assert all(59 <= x <= 881 and 0 <= y <= 260 for x, y in points)


def test_bars_and_track_spans_are_one_rectangle_each() -> None:
    assert bars([("a", "50%", 0.5, 0), ("b", "120%", 1.2, 1)]).count("<rect") == 2
    svg = timeline_chart(phase("x", [1, 2]).timeline)
    assert [svg.count(f"class={kind}") for kind in ("request", "online", "offline")] == [1, 3, 20]
