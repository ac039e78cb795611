"""The base of all charts: `Chart`, and shared layers, colours and tooltips."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import altair as alt
from altair.utils.schemapi import debug_mode

from warplens.errors import UsageError
from warplens.report.text import printable
from warplens.report.theme import Ink, chart_config, light_ink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType


#: One mark of a chart: values by field, as embedded in its data.
Mark: TypeAlias = dict[str, Any]

#: Width of charts in files, in pixels; in HTML a chart takes the width of its container.
STATIC_WIDTH = 760

#: Bytes of address space. V8, which renders images, reserves two cages of 32 GiB and aborts the process without them.
_PICTURE_ADDRESSES: Final = 72 * 2**30

#: Open files. The runtime of V8 holds about twenty and panics without them.
_PICTURE_FILES: Final = 32

#: Fills of series without a colour of their own, distinct in hue and lightness.
_SERIES_FILLS = ("gemm", "idle-1", "attention", "communication", "reduction", "idle-3", "elementwise", "other")


@dataclass(frozen=True)
class Chart:
    """A chart that is drawn on demand, in the colours of the output."""

    draw: Callable[[Ink], alt.LayerChart]
    zooms: str = ""  #: axes along which it can be zoomed and panned in HTML: `x`, `xy`, or empty for none

    def spec(self, ink: Ink, description: str, width: int | str = "container") -> dict[str, Any]:
        """The Vega-Lite specification; the description is its alternative text, the width in pixels or "container"."""
        # Validation takes half of the drawing time, and tests validate every chart.
        with debug_mode(False):
            drawn = self.draw(ink).properties(width=width, description=description)
            spec: dict[str, Any] = drawn.to_dict(validate=False)
        spec["config"] = chart_config(ink)
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
        spec["padding"] = {"left": 0, "right": 0, "top": 2, "bottom": 2}
        if self.zooms and width == "container":
            _let_zoom(spec["layer"], list(self.zooms))
        return spec

    def svg(self, description: str) -> str:
        """The chart as a stand-alone SVG in light colours."""
        text: str = _painter().vegalite_to_svg(self._file_spec(description), vl_version=vega_lite_version())
        return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(printable(description))}"', 1)

    def png(self, description: str) -> bytes:
        """The chart as a PNG in light colours, twice its nominal size."""
        spec = self._file_spec(description)
        image: bytes = _painter().vegalite_to_png(spec, vl_version=vega_lite_version(), scale=2.0)
        return image

    def _file_spec(self, description: str) -> dict[str, Any]:
        spec = self.spec(light_ink, description, width=STATIC_WIDTH)
        # Invisible layers only serve tooltips, and would be most of an image's size.
        visible = [layer for layer in spec["layer"] if layer["mark"].get("opacity") != 0]
        # The colours need this background, whatever a file is shown on.
        painted: dict[str, Any] = _paintable(
            {**spec, "layer": visible, "background": light_ink("surface"), "padding": 12}
        )
        return painted


def _paintable(part: Any) -> Any:
    """A part of a specification with printable texts: the painter ends the process at characters that XML refuses."""
    if isinstance(part, dict):
        return {key: _paintable(item) for key, item in part.items()}
    if isinstance(part, list):
        return [_paintable(item) for item in part]
    return printable(part) if isinstance(part, str) else part


def _painter() -> ModuleType:
    """The library that renders images, if the resource limits of this process suffice for it."""
    if os.name == "posix":
        import resource

        requirements = (
            (resource.RLIMIT_AS, _PICTURE_ADDRESSES, 2**30, "GiB of addresses", "ulimit -v"),
            (resource.RLIMIT_NOFILE, _PICTURE_FILES, 1, "open files", "ulimit -n"),
        )
        for kind, minimum, unit, noun, command in requirements:
            limit, _ = resource.getrlimit(kind)
            if limit != resource.RLIM_INFINITY and limit < minimum:
                raise UsageError(
                    f"pictures need {minimum / unit:.0f} {noun}, and this process may have {limit / unit:.0f} "
                    f"({command}). Lift the limit, or ask for --format html"
                )
    import vl_convert

    return vl_convert


#: The event that zooms a chart; the wheel without a key scrolls the page.
_ZOOM: Final = "wheel![event.ctrlKey || event.metaKey || event.shiftKey]"


def _let_zoom(layers: list[dict[str, Any]], axes: list[str]) -> None:
    """Make a chart pan by dragging and zoom by the wheel with a key; marks are clipped to the axes.

    The page has a control to reset the view.
    """
    select = {"type": "interval", "encodings": axes, "zoom": _ZOOM, "clear": False}
    plotted = next(layer for layer in layers if all("field" in layer["encoding"].get(axis, {}) for axis in axes))
    plotted["params"] = [{"name": "shown", "select": select, "bind": "scales"}]
    for layer in layers:
        mark = layer["mark"] if isinstance(layer["mark"], dict) else {"type": layer["mark"]}
        layer["mark"] = {**mark, "clip": True}


def vega_lite_version() -> str:
    """The Vega-Lite version that Altair writes, as vl-convert names it (`6.4`)."""
    major, minor = alt.SCHEMA_VERSION.lstrip("v").split(".")[:2]
    return f"{major}.{minor}"


def layered(*layers: alt.Chart, height: int) -> alt.LayerChart:
    """Layers of a chart, the first at the bottom, `height` pixels high."""
    return alt.LayerChart(layer=list(layers), height=height)


def layer(marks: Iterable[Mark] | alt.Chart, mark: str, style: Mapping[str, Any], **encodings: Any) -> alt.Chart:
    """One layer of a chart: marks, or a chart with them as data, drawn as `rect`, `text`, … of this style.

    The encodings are by name of the channel. Texts (`"x1:Q"`) and values are converted to channel objects here, because
    Altair's own conversion searches all classes of its schema, a third of the drawing time.
    """
    chart = marks if isinstance(marks, alt.Chart) else alt.Chart(embedded(marks))
    channels = {name: _channel(name[:1].upper() + name[1:], encoding) for name, encoding in encodings.items()}
    drawn: alt.Chart = getattr(chart, f"mark_{mark}")(**style).encode(**channels)
    return drawn


def _channel(name: str, encoding: Any) -> Any:
    if isinstance(encoding, str):
        return getattr(alt, name)(encoding)
    return getattr(alt, f"{name}Value")(encoding["value"]) if isinstance(encoding, dict) else encoding


class _Marks(alt.InlineData):
    """Marks that Altair does not copy for each layer and chart; they are never modified."""

    def __deepcopy__(self, *_: object) -> _Marks:
        return self


def embedded(marks: Iterable[Mark]) -> alt.InlineData:
    """Marks as data of a chart; fields that are None are left out."""
    return _Marks(values=[{key: item for key, item in mark.items() if item is not None} for mark in marks])


def tooltip(*fields: str, **titled: str) -> list[alt.Tooltip]:
    """The fields of a tooltip: positional ones are shown first, without a title; keywords give titles."""
    head = [alt.Tooltip(f"{field}:N", title=f"_{field}") for field in fields]
    return head + [alt.Tooltip(f"{field}:N", title=title) for title, field in titled.items()]


def series_colours(names: list[str], ink: Ink) -> alt.Color:
    """A colour per series (field `series`), with a legend above the chart if there are several."""
    fills = [ink(_SERIES_FILLS[position % len(_SERIES_FILLS)]) for position in range(len(names))]
    legend = legend_above() if len(names) > 1 else None
    return alt.Color("series:N", scale=alt.Scale(domain=names, range=fills), legend=legend)


def legend_above() -> alt.Legend:
    """A legend without a title, in one line above the chart."""
    return alt.Legend(orient="top", title=None, direction="horizontal", offset=4, columns=3)


def short(quantity: float) -> float:
    """The number rounded to six significant digits: finer than any screen, and a third of the size as text."""
    return float(f"{quantity:.6g}")
