"""Does the demo's page draw what was seen?"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.apps.demo_loads import BUSIEST_PER_S, DAY_S, changing_service, rate_at, service, training
from cotenant.apps.demo_share import PICTURE_NS, last_of, picture_of, ran_spans
from cotenant.apps.report.act import Act, Picture
from cotenant.apps.report.day import Day, DayRun, day_drawing, day_rows
from cotenant.apps.report.draw import bars, curves, ticks, timeline
from cotenant.apps.report.page import report_page
from cotenant.domain.trace import Device, Op, Ran, Recording, Turn
from cotenant.errors import WorldError

MS = 1_000_000


def act(name: str, latencies_ns: list[int]) -> Act:
    picture = Picture(
        0, PICTURE_NS, [(5 * MS, 9 * MS)], [(MS, 2 * MS)] * 3, [(at * MS, at * MS + 9) for at in range(20)]
    )
    return Act(
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
        picture=picture,
    )


class Balance(HTMLParser):
    """Every element of a drawing that is opened is closed."""

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


def day(name: str) -> Day:
    """Five requests within a second, and a share that is set anew once."""
    run = DayRun(
        name=name,
        number=1,
        requests=[(place * 200 * MS, (place + 1) * MS) for place in range(5)],
        shares=[(0, 980_000), (500 * MS, 400_000)],
        paces=[(0, 500 * MS, 0.1), (500 * MS, 1000 * MS, 1.2)],
        attained=0.6,
        p99_ns=5 * MS,
        training=0.65,
    )
    return Day(slo_ns=3 * MS, span_ns=1000 * MS, parts=[(0, "<i>"), (500 * MS, "later")], runs=[run])


def test_a_page_is_whole_and_its_names_are_text() -> None:
    acts = [act("<script>", [MS, 2 * MS]), act("other", [MS] * 500)]
    page = report_page(acts, day("<script>"), service(10, 0), training(), 29.5, "")
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert "<script>" not in page
    assert "No trace was written" in page
    assert page.count("<svg") == 5


def test_every_colour_of_an_act_has_a_style() -> None:
    acts = [act(str(number), [MS, 2 * MS]) for number in range(4)]
    page = report_page(acts, day("cotenant"), service(10, 0), training(), 29.5, "")
    for used in set(re.findall(r"class='(curve|bar|key|dot) act(\d)'", page)):
        assert f".{used[0]}.act{used[1]}" in page.split("</style>")[0]


def test_a_day_draws_each_request_once_and_the_share_from_when_on_it_held() -> None:
    drawn = day_drawing(day("cotenant"))
    assert drawn.count("<circle") == 5
    (share,) = re.findall(r"<polyline class='curve act1' points='([^']*)' />", drawn)[:1]
    xs, ys = zip(*(map(float, point.split(",")) for point in share.split()), strict=True)
    assert list(xs) == sorted(xs)
    assert ys[0] == ys[1] < ys[2] == ys[3]
    assert day_rows(day("cotenant")) == [("cotenant", "60.0%", "5ms", "65%")]


def test_the_short_day_follows_its_rates() -> None:
    load = changing_service(3)
    instants_ns = load.arrival.instants_ns
    assert load.requests == len(instants_ns)
    assert changing_service(3) == load != changing_service(4)
    by_part = [
        sum(begin <= at_ns / 1e9 < end for at_ns in instants_ns) / (end - begin)
        for begin, end in ((0.0, 2.0), (2.0, 4.0), (4.0, 5.5), (5.5, 6.1), (9.0, 11.0), (12.5, DAY_S))
    ]
    quiet, up, down, burst, noon, night = by_part
    assert max(quiet, down, night) < min(up, noon) < burst
    assert all(rate_at(place / 10) <= BUSIEST_PER_S for place in range(round(10 * DAY_S)))


def ran(pid: int, client: int, start_ms: int, end_ms: int, kind: Op = Op.KERNEL) -> Ran:
    return Ran(kind, pid, client, 0, start_ms * MS, start_ms * MS, start_ms * MS, end_ms * MS, 0)


def recorded(rows: list[Ran], turns: list[Turn]) -> Recording:
    return Recording(0, 200 * MS, 0, (), (Device(0, "made", rows, turns),))


def test_a_picture_is_the_window_in_which_the_service_did_most() -> None:
    rows = [ran(1, 0, 10, 11), ran(1, 0, 60, 63), ran(1, 0, 64, 65), ran(2, 1, 0, 200), ran(1, 0, 61, 99, Op.HOST)]
    requests = [(10 * MS, 11 * MS), (60 * MS, 65 * MS)]
    picture = picture_of(recorded(rows, []), (1, 2), requests)
    assert (picture.begin_ns, picture.end_ns) == (58 * MS, 58 * MS + PICTURE_NS)
    assert picture.requests == [(60 * MS, 65 * MS)]
    assert picture.online == [(60 * MS, 63 * MS), (64 * MS, 65 * MS)]
    assert picture.offline == [(0, 200 * MS)]
    with pytest.raises(WorldError):
        picture_of(recorded(rows, []), (3, 0), requests)


def test_a_kernel_that_was_switched_out_did_not_run_meanwhile() -> None:
    turns = [Turn(1, 3 * MS, is_on=False), Turn(0, 4 * MS, is_on=False), Turn(1, 5 * MS, is_on=True)]
    assert ran_spans(recorded([ran(2, 1, 1, 8)], turns), 2) == [(1 * MS, 3 * MS), (5 * MS, 8 * MS)]
    assert ran_spans(recorded([ran(2, 1, 1, 4)], turns[:1]), 2) == [(1 * MS, 3 * MS)]
    assert ran_spans(recorded([ran(2, 1, 5, 8)], turns), 2) == [(5 * MS, 8 * MS)]


def test_the_last_of_a_recording_is_its_end() -> None:
    found = last_of(recorded([ran(1, 0, 10, 11), ran(1, 0, 190, 191)], [Turn(0, 5, is_on=True)]), 20 * MS)
    assert found.start_ns == 180 * MS
    assert [one.start_ns for one in found.devices[0].ran] == [190 * MS]
    assert found.devices[0].turns == []


@given(st.integers(1, 10**10), st.integers(1, 10**10))
def test_ticks_lie_within_and_are_round(one: int, other: int) -> None:
    least, most = sorted((one, other))
    found = ticks(least, most)
    assert found == sorted(set(found))
    assert all(least <= tick <= most and re.fullmatch("[125]0*", str(tick)) for tick in found)


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=300).map(sorted), min_size=1, max_size=3))
def test_a_curve_rises_and_stays_inside(latencies: list[list[int]]) -> None:
    drawn = curves([act(str(number), one) for number, one in enumerate(latencies)])
    lines = re.findall("points='([^']*)'", drawn)
    assert len(lines) == len(latencies)
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert points == sorted(points, key=lambda point: (point[0], -point[1]))
        assert all(59 <= x <= 881 and 0 <= y <= 260 for x, y in points)


def test_bars_and_lanes_have_one_mark_for_each() -> None:
    assert bars([("a", "50%", 0.5, 0), ("b", "120%", 1.2, 1)]).count("<rect") == 2
    drawn = timeline(act("x", [1, 2]).picture)
    assert [drawn.count(f"class={kind}") for kind in ("request", "online", "offline")] == [1, 3, 20]
