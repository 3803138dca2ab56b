"""Values on hover in an SVG file that matplotlib wrote: a transparent shape over each point and bar, with a title."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

POINTS_MAX: Final = 400
"""Points of one line that show their value: more cannot be told apart with a pointer."""
_RADIUS: Final = 4.0
_POINTS_PER_INCH: Final = 72.0
_STYLE: Final = "<style>.value{fill:#0000;stroke:none}.value:hover{fill:#0003;stroke:#000}</style>"
_END: Final = "</svg>"


def with_values(drawn: str, figure: Any, box: Any) -> str:
    """Return the drawing of a figure with values on hover; `box` is the drawn part of the figure in inches."""
    shapes = "".join(_shape(bounds, text) for axis in figure.axes for bounds, text in _values(axis, figure.dpi, box))
    head, end, tail = drawn.rpartition(_END)
    return f"{head}<g id='values'>{_STYLE}{shapes}</g>{end}{tail}"


def _shape(bounds: Sequence[float], text: str) -> str:
    """Return a rectangle, or a circle around a point, with a title."""
    title = f"<title>{escape(text)}</title>"
    x, y, width, height = bounds
    if width or height:
        return f"<rect class='value' x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}'>{title}</rect>"
    return f"<circle class='value' cx='{x:.1f}' cy='{y:.1f}' r='{_RADIUS}'>{title}</circle>"


def _values(axis: Any, dpi: float, box: Any) -> Iterator[tuple[Sequence[float], str]]:
    """Yield position and size in the drawing, and the text, of every value of one plot.

    Bars come first, so that a point above a bar receives the pointer.
    """
    if not axis.get_visible():
        return
    scales = _Scale(axis, "x"), _Scale(axis, "y")

    def place(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return positions in the drawing; what is outside the plot is at its edge."""
        pixels = axis.transData.transform(
            [[scale.within(part) for scale, part in zip(scales, point, strict=True)] for point in points]
        )
        return [((x / dpi - box.x0) * _POINTS_PER_INCH, (box.y1 - y / dpi) * _POINTS_PER_INCH) for x, y in pixels]

    for bars in axis.containers:
        is_flat = getattr(bars, "orientation", "") == "horizontal"
        for bar in bars.patches if hasattr(bars, "patches") else ():
            (x, y), (x_end, y_end) = bar.get_xy(), (bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height())
            (left, low), (right, high) = place([(x, y), (x_end, y_end)])
            end = (x_end, (y + y_end) / 2) if is_flat else ((x + x_end) / 2, y_end)
            area = min(left, right), min(low, high), abs(right - left), abs(high - low)
            yield area, _text(_bars_name(axis.figure, bar), scales, end)
    notes = {tuple(map(float, note.xy)): note.get_text() for note in axis.texts if hasattr(note, "xy")}
    for line in axis.lines:
        if line.get_transform() != axis.transData:  # a limit across the whole plot, which the legend states
            continue
        points = [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        shown = [point for point in points[:: max(1, -(-len(points) // POINTS_MAX))] if _is_visible(scales, point)]
        for point, position in zip(shown, place(shown) if shown else (), strict=True):
            yield (*position, 0.0, 0.0), _text(notes.get(point) or _name(line), scales, point)


class _Scale:
    """One axis of a plot: its title, its range, and the names of its ticks if it has names."""

    def __init__(self, axis: Any, which: str) -> None:
        scale = getattr(axis, f"{which}axis")
        self.low, self.high = sorted(map(float, scale.get_view_interval()))
        self._title = " ".join(_axis_title(axis, which).split())
        labels = [label.get_text() for label in scale.get_ticklabels()]
        is_named = type(scale.get_major_locator()).__name__ == "FixedLocator" and any(labels)
        self._names = list(zip(map(float, scale.get_ticklocs()), labels, strict=False)) if is_named else []

    def within(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def text(self, value: float) -> str:
        """Return a coordinate: the name of the nearest tick, else the number after the title of the axis."""
        if self._names:
            return str(min(self._names, key=lambda tick: abs(tick[0] - value))[1])
        return f"{self._title}: {value:.4g}" if self._title else f"{value:.4g}"


def _text(name: str, scales: tuple[_Scale, _Scale], point: tuple[float, float]) -> str:
    return "\n".join(filter(None, (name, *(scale.text(part) for scale, part in zip(scales, point, strict=True)))))


def _is_visible(scales: tuple[_Scale, _Scale], point: tuple[float, float]) -> bool:
    return all(scale.low <= part <= scale.high for scale, part in zip(scales, point, strict=True))


def _name(artist: Any) -> str:
    """Return the label of a line or of bars; matplotlib gives those without one a label that begins with a line."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _bars_name(figure: Any, bar: Any) -> str:
    """Return the name of a bar: the legend, perhaps of another plot of the figure, names its colour."""
    alike = (
        bars
        for axis in figure.axes
        for bars in axis.containers
        if getattr(bars, "patches", ()) and bars[0].get_facecolor() == bar.get_facecolor()
    )
    return next((name for bars in alike if (name := _name(bars))), "")


def _axis_title(axis: Any, which: str) -> str:
    """Return the title of an axis; of plots that share a row or a column, only the outermost has one."""
    own = str(getattr(axis, f"get_{which}label")())
    place = axis.get_subplotspec()
    if own or place is None:
        return own
    span = "rowspan" if which == "y" else "colspan"
    peers = (peer for peer in axis.figure.axes if peer.get_subplotspec() is not None)
    titles = (
        str(getattr(peer, f"get_{which}label")())
        for peer in peers
        if getattr(peer.get_subplotspec(), span) == getattr(place, span)
    )
    return next(filter(None, titles), "")
