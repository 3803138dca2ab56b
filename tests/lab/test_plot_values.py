"""Values on hover in the drawings of studies: they are where matplotlib drew the points, and state what it drew."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cotenant_lab.plots.hover import POINTS_MAX
from cotenant_lab.plots.pyplot import drawn_with
from cotenant_lab.study.device.plots import INDEX, save, write_plots_page

pytest.importorskip("matplotlib")
SVG = "{http://www.w3.org/2000/svg}"
POINTS = [(1.0, 2.0), (2.0, 30.0), (4.0, 900.0)]


def draw(path: Path) -> None:
    """Draw a line with a logarithmic axis, a line with many points, bars with names, and a point with a note."""
    with drawn_with() as pyplot:
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 4), sharey=False)
        axes[0].plot(*zip(*POINTS, strict=True), "D", label="model <a> & b")
        axes[0].plot([1, 9], [2000, 2000], label="partly outside")
        axes[0].axvline(3, label="a limit")
        axes[0].set_yscale("log")
        axes[0].set_xlim(0.5, 5)
        axes[0].set_xlabel("share, %")
        axes[0].set_ylabel("latency, ms")
        axes[1].barh([0.2, 1.2], [10, 20], 0.4, color="#123456", label="before")
        axes[1].barh([-0.2], [30], 0.4, color="#654321")
        axes[1].set_yticks([0, 1], ["first", "second"])
        axes[1].axvspan(1, 2)
        axes[2].plot([5], [6], "o")
        axes[2].annotate("a policy", (5, 6))
        axes[2].plot(range(5 * POINTS_MAX), [6] * (5 * POINTS_MAX), label="many")
        save(pyplot, figure, path)


def shown(path: Path) -> dict[str, ET.Element]:
    """Return the shapes with a value, by their text."""
    found = [each for each in ET.parse(path).iter() if each.get("class") == "value"]
    return {each.findtext(f"{SVG}title", ""): each for each in found}


def test_points_show_their_values_where_they_are(tmp_path: Path) -> None:
    draw(tmp_path / "a.svg")
    values = shown(tmp_path / "a.svg")
    places = []
    for share, latency in POINTS:
        circle = values[f"model <a> & b\nshare, %: {share:g}\nlatency, ms: {latency:g}"]
        places.append((float(circle.get("cx", "")), float(circle.get("cy", ""))))
    markers = [
        [(float(use.get("x", "")), float(use.get("y", ""))) for use in group.iter(f"{SVG}use")]
        for group in ET.parse(tmp_path / "a.svg").iter(f"{SVG}g")
        if str(group.get("id")).startswith("line2d")
    ]
    assert any(
        len(drawn) == len(places)
        and all(one == pytest.approx(other, abs=0.06) for one, other in zip(drawn, places, strict=True))
        for drawn in markers
    )
    assert "partly outside\nshare, %: 1\nlatency, ms: 2000" in values
    assert not any("share, %: 9" in text or "a limit" in text for text in values), "it is outside, or no value"


def test_bars_and_notes_have_names_and_long_lines_few_values(tmp_path: Path) -> None:
    draw(tmp_path / "a.svg")
    values = shown(tmp_path / "a.svg")
    first, second = values["before\n10\nfirst"], values["before\n20\nsecond"]
    assert float(second.get("width", "")) == pytest.approx(2 * float(first.get("width", "")), rel=0.01)
    assert "30\nfirst" in values, "bars without a label have values too"
    assert "a policy\n5\nlatency, ms: 6" in values, "plots of a row share the title of their vertical axes"
    assert 0 < sum(text.startswith("many") for text in values) <= POINTS_MAX


def test_page_contains_the_drawings_and_can_be_opened_alone(tmp_path: Path) -> None:
    draw(tmp_path / "a.svg")
    write_plots_page(tmp_path, "title", "text", "", "", {"a.svg": 'one "caption"'}, {})
    page = (tmp_path / INDEX).read_text()
    assert '<svg role=img aria-label="one &quot;caption&quot;"' in page
    assert len(re.findall("class='value'", page)) == len(re.findall("class='value'", (tmp_path / "a.svg").read_text()))
    assert "<img" not in page
    assert "<?xml" not in page
