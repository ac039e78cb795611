"""Colours and font of charts and pages, for the light and the dark theme.

Charts refer to colours by token, which an `Ink` maps to a colour of the output: in HTML a CSS variable, so that one
chart serves both themes and print; in SVG and PNG files the light theme's colour.

GPU work has cool hues (blue, teal, violet), idle time warm ones (amber to brick). The two families are distinct under
every common colour-vision deficiency. Within a family the parts also differ in lightness, and every part is labelled
directly, so that nothing depends on hue alone. Every fill has a contrast of at least 3:1 with its background (WCAG 2.2,
1.4.11); text has at least 4.5:1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

Theme: TypeAlias = Literal["light", "dark"]
Ink: TypeAlias = Callable[[str], str]

#: Colours of page and text: (light, dark) by token.
PAGE: Mapping[str, tuple[str, str]] = {
    "page": ("#f7f7f6", "#0f1215"),
    "surface": ("#ffffff", "#161a1f"),
    "raised": ("#fafaf8", "#1c2127"),
    "ink": ("#191c20", "#e8eaed"),
    "soft": ("#565d66", "#a2abb6"),
    "line": ("#e3e3de", "#2a3037"),
    "strong-line": ("#c9cac4", "#3d454f"),
    "track": ("#ecedea", "#242a31"),
    "accent": ("#1d5ab0", "#84b1f5"),
    "accent-soft": ("#e8eff9", "#1d2a3d"),
    "warning": ("#8f5a00", "#f0b45b"),
    "warning-soft": ("#fdf4e3", "#2b2416"),
    "blocking": ("#a8322a", "#f08f84"),
    "blocking-soft": ("#fcecea", "#2f1d1c"),
}

#: Fills of charts: (light, dark) by token. The token of a kernel category is its name.
FILLS: Mapping[str, tuple[str, str]] = {
    "gemm": ("#1d5ab0", "#5086d6"),
    "attention": ("#00929f", "#51bdc8"),
    "elementwise": ("#3b93d5", "#73bffd"),
    "reduction": ("#346b84", "#6394ab"),
    "softmax": ("#685ec1", "#908be8"),
    "normalization": ("#858ad4", "#b1b7fd"),
    "gather-scatter": ("#147175", "#529a9d"),
    "sort-topk": ("#6a839d", "#96aec7"),
    "convolution": ("#2f4989", "#5873af"),
    "copy-cast": ("#559eb4", "#88c9de"),
    "recurrence": ("#7d5fa8", "#a98fd0"),
    "optimizer": ("#554c84", "#7c75aa"),
    "triton": ("#5c82da", "#8aafff"),
    "random": ("#8c8fb1", "#b7bbdb"),
    "other": ("#697686", "#93a0af"),
    "communication": ("#722eb5", "#9e68e2"),
    "transfer": ("#008f7d", "#53b9a7"),
    "graph": ("#4d7072", "#79999b"),
    "idle-1": ("#d07c06", "#ffb15e"),
    "idle-2": ("#c94e0c", "#f28052"),
    "idle-3": ("#af3d34", "#d86e62"),
    "idle-4": ("#b08826", "#deb868"),
    "idle-5": ("#884c1e", "#b07750"),
    "idle-6": ("#9d6800", "#c6944b"),
    "idle-7": ("#e14d28", "#ff8362"),
}

#: The font of pages and charts; image files fall back to a font of the viewer's machine.
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", sans-serif'


def colour(token: str, theme: Theme) -> str:
    """The hex colour of a token in a theme; a KeyError if there is no such token."""
    pair = FILLS[token] if token in FILLS else PAGE[token]
    return pair[0 if theme == "light" else 1]


def css_ink(token: str) -> str:
    """The CSS variable of a token, which follows the theme of the page; a KeyError if there is no such token."""
    if token not in FILLS and token not in PAGE:
        raise KeyError(token)
    return f"var(--{token})"


def light_ink(token: str) -> str:
    """The light theme's colour of a token, for image files."""
    return colour(token, "light")


def category_fill(category: str) -> str:
    """The token of a kernel category of `warplens.analysis.categories`; that of `other` for an unknown one."""
    return category if category in FILLS else "other"


#: Colour tokens of idle causes. There are more causes than distinct hues, so related or rare ones share a token.
_CAUSE_FILLS: Final = {
    "launch": "idle-1",
    "graph-launch": "idle-1",
    "synchronization": "idle-3",
    "refill": "idle-3",
    "allocation": "idle-5",
    "blocking-copy": "idle-7",
    "host": "idle-2",
    "dependency": "idle-4",
    "submission": "idle-6",
    "start-latency": "idle-4",
    "profiler": "idle-5",
    "unknown": "idle-6",
}

_GROUP_FILLS: Final = {"copy": "transfer", "graph": "graph", "communication": "communication"}


def part_fill(group: str, part: str) -> str:
    """The colour token of a part of a time budget."""
    if group == "idle":
        return _CAUSE_FILLS.get(part, "idle-6")
    return _GROUP_FILLS.get(group) or category_fill(part)


#: Colour tokens of the host's CUDA calls: those of the idle time that the calls cause.
_CALL_FILLS: Final = {
    "launch": "idle-1",
    "graph-launch": "idle-1",
    "sync": "idle-3",
    "allocation": "idle-5",
    "copy": "transfer",
    "memset": "transfer",
}


def call_fill(kind: str) -> str:
    """The colour token of a kind of CUDA call (`warplens.analysis.api`)."""
    return _CALL_FILLS.get(kind, "other")


def chart_config(ink: Ink) -> dict[str, Any]:
    """Vega-Lite configuration: unobtrusive axes, no frame, the font of the page."""
    text = {"labelColor": ink("soft"), "titleColor": ink("soft"), "labelFontSize": 11, "titleFontSize": 11}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "text": {"fill": ink("ink"), "fontSize": 12},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "domainColor": ink("strong-line"),
            "tickColor": ink("strong-line"),
            "gridColor": ink("line"),
            "labelPadding": 6,
            "titlePadding": 8,
        },
        "axisY": {"domain": False, "ticks": False},
        "legend": {**text, "labelFontSize": 12, "symbolType": "square", "symbolSize": 90, "symbolOpacity": 1},
    }
