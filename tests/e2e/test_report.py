"""Does the demo's page draw what was seen?"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.apps.demo_loads import service, training
from cotenant.apps.demo_share import PICTURE_NS, picture_of
from cotenant.apps.report.act import Act
from cotenant.apps.report.draw import bars, curves, ticks, timeline
from cotenant.apps.report.page import report_page
from cotenant.errors import WorldError

MS = 1_000_000


def act(name: str, latencies_ns: list[int]) -> Act:
    looks = [(at * MS, at * MS * 8, at * MS * 40) for at in range(60)]
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
        picture=picture_of(looks, [(5 * MS, 9 * MS), (900 * MS, 901 * MS)]),
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


def test_a_page_is_whole_and_its_names_are_text() -> None:
    acts = [act("<script>", [MS, 2 * MS]), act("other", [MS] * 500)]
    page = report_page(acts, service(10, 0), training(), 29.5, "")
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert "<script>" not in page
    assert "No trace was written" in page
    assert page.count("<svg") == 4


def test_a_picture_is_the_window_in_which_the_service_did_most() -> None:
    busy = range(30, 40)
    online = 0
    looks = []
    for at in range(100):
        looks.append((at * MS, online, at * MS * 80))
        online += 80 * MS if at in busy else 0
    picture = picture_of(looks, [(31 * MS, 33 * MS), (99 * MS, 100 * MS)])
    assert picture.end_ns - picture.begin_ns == PICTURE_NS
    assert sum(one.online for one in picture.bins) == pytest.approx(len(busy))
    assert all(one.offline == pytest.approx(1.0) for one in picture.bins)
    assert picture.requests == [(31 * MS, 33 * MS)]
    with pytest.raises(WorldError):
        picture_of(looks[:1], [])


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
    assert drawn.count("class=online") == drawn.count("class=offline") == 20
