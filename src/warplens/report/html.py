"""Renders a document as one self-contained HTML file that works offline, from a `file:` address.

Data from a profile is treated as text: Jinja escapes it, chart data is JSON that cannot end its script element, and
tooltips are text nodes. In addition, a Content-Security-Policy forbids all scripts but the page's own (by hash), all
network access, and `eval`: charts run with Vega's expression interpreter instead.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import lzma
import re
import zlib
from collections.abc import Iterable
from importlib import resources
from typing import Any, Final, get_args

import jinja2
import polars as pl

from warplens._version import __version__
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import NOTE_TAGS, Document, Table, View
from warplens.report.jsonout import dumps
from warplens.report.theme import FILLS, FONT, PAGE, Theme, colour, css_ink

#: Rows of one table in the page. More would be slow on a phone; `report.json` has all of them.
MOST_ROWS = 500

#: Positions in a kernel's name where a line may break: after these characters.
_BREAKS = re.compile(r"(?<=[_<,:/])(?=[^_<,:/])")

#: The space between a number and its unit.
_UNITS: Final = re.compile(r"(?<=\d) (?=%|[nµm]?s\b|[kMGTP]?i?B\b)")

#: Text cells of more characters than this need a wide column.
_PROSE: Final = 32

#: Level of deflate compression: 10 % larger than at the best level, in a third of the time.
_COMPRESSION_LEVEL: Final = 6


def render_html(document: Document) -> str:
    """The whole page, as the text of one file."""
    specs = {figure.id: figure.chart.spec(css_ink, figure.alt) for figure in document.figures()}
    # The configuration is the same in all charts, so it is stored once.
    configs = [spec.pop("config") for spec in specs.values()]
    charts = {"config": configs[0], "specs": specs} if specs else {}
    views = [block for block in document.blocks() if isinstance(block, View)]
    kinds = dict.fromkeys(view.kind for view in views)
    script_names = ["page.js", *(["vega.js"] if charts else []), *(f"{kind}.js" for kind in kinds), "report.js"]
    scripts = [asset(name) for name in script_names]
    view_styles = "".join(asset(f"{kind}.css") for kind in kinds)
    styles = [_theme_css() + asset("report.css").replace("PAGE_FONT", FONT) + view_styles, _WITHOUT_SCRIPTS]
    environment = _environment()
    rows: dict[str, list[tuple[int, str]]] = {}

    def later(table: str, place: int, row: str) -> str:
        """Store a row that is not shown at first for the script, and return an empty text in its place."""
        rows.setdefault(table, []).append((place, row))
        return ""

    blocks: Any = environment.get_template("blocks.html.j2").make_module(
        {"view": _table_view, "note_tags": NOTE_TAGS, "missing": fmt.MISSING, "later": later}
    )
    return environment.get_template("report.html.j2").render(
        document=document,
        version=__version__,
        policy=_policy([asset("theme.js"), *scripts], styles),
        styles=styles,
        theme_script=asset("theme.js"),
        scripts=scripts,
        data={f"{view.id}-data": view.data for view in views},
        packed={"warplens-charts": charts, "warplens-rows": rows},
        blocks=blocks,
    )


#: Hides controls that need scripts; for browsers with scripts disabled.
_WITHOUT_SCRIPTS: Final = ".fold,.rooms select{display:none}"


@functools.cache
def _environment() -> jinja2.Environment:
    """Cached, since compiling the templates takes 0.25 s."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "quantity": fmt.value,
        "duration": fmt.duration,
        "share": fmt.share,
        "sentence": fmt.sentence,
        "embedded": _embedded_json,
        "packed": _packed,
        "percent": "{:.3%}".format,  # an SVG length
        "unbroken": _unbroken,
    }
    return environment


def _unbroken(text: str) -> str:
    """The text with no-break spaces between numbers and their units."""
    return _UNITS.sub("\N{NO-BREAK SPACE}", text)


@functools.cache
def asset(name: str) -> str:
    """A text file of the page, by name; `vega.js` is stored compressed."""
    folder = resources.files("warplens.report") / "assets"
    if name == "vega.js":
        return lzma.decompress((folder / f"{name}.xz").read_bytes()).decode()
    return (folder / name).read_text("utf-8")


def _policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """A Content-Security-Policy that allows only these scripts and styles, and no loading."""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Iterable[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _embedded_json(value: Any) -> str:
    """JSON for a script element, escaped so that it cannot end the element or open a comment."""
    text = dumps(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _packed(value: Any) -> str:
    """Deflated JSON in Base64, which needs no escaping; compression removes the repetition of charts and rows."""
    return base64.b64encode(zlib.compress(dumps(value), _COMPRESSION_LEVEL)).decode()


def _theme_css() -> str:
    light, dark = (
        "".join(f"--{token}:{colour(token, theme)};" for token in (*PAGE, *FILLS)) for theme in get_args(Theme)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=light]{{color-scheme:light;{light}}}:root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media print{{:root,:root[data-theme]{{color-scheme:light;{light}}}}}\n"
        + "".join(f".d{depth}{{--depth:{depth}}}" for depth in range(25))
        + "\n"
    )


def _table_view(table: Table) -> dict[str, Any]:
    """The values that the template needs of a table: columns, rows of cells, and which rows are shown at first."""
    frame = table.rows.head(MOST_ROWS)
    limit = table.limit if table.limit is not None else frame.height
    depths = frame.get_column(table.depth).to_list() if table.depth else []
    leads = frame.get_column(table.leads).to_list() if table.leads else [""] * frame.height
    open_to = _open_depth(depths, limit)
    rows = [
        {
            "cells": [_cell(*cell, row[cell[0].name]) for cell in zip(table.columns, table.texts(row), strict=True)],
            "hidden": depths[index] > open_to if depths else index >= limit,
            "depth": depths[index] if depths else 0,
            "parent": bool(depths) and index + 1 < len(depths) and depths[index + 1] > depths[index],
            "open": bool(depths) and depths[index] < open_to,
            "leads": leads[index],
        }
        for index, row in enumerate(frame.iter_rows(named=True))
    ]
    shown = sum(not row["hidden"] for row in rows)
    left_out = table.rows.height - frame.height
    left_out_text = f"{fmt.plural(left_out, 'more row')} {'is' if left_out == 1 else 'are'} in report.json."
    return {
        "columns": [
            {
                "title": column.title,
                "numeric": fmt.is_numeric(column.kind),
                "help": column.sentence,
                "wide": _is_wide(column, frame),
            }
            for column in table.columns
        ],
        "rows": rows,
        "limit": limit,
        "tree": table.depth is not None,
        "leading": table.leads is not None or table.cards,
        "count": fmt.plural(shown, "row") if shown == len(rows) else f"{shown} of {fmt.plural(len(rows), 'row')}",
        "more": shown < len(rows),
        "left_out": left_out_text if left_out else "",
    }


def _is_wide(column: Column, frame: pl.DataFrame) -> bool:
    """Whether a text column holds names or long texts, which would take many lines in a narrow column."""
    if fmt.is_numeric(column.kind):
        return False
    texts = frame.get_column(column.name)
    longest: Any = texts.str.len_chars().max() if texts.dtype == pl.String else None
    return column.kind in ("kernel", "name") or (longest or 0) > _PROSE


def _open_depth(depths: list[int], limit: int) -> int:
    """The depth to which a tree is unfolded at first: the largest with at most `limit` rows."""
    depth = 0
    while depth < max(depths, default=0) and sum(level <= depth + 1 for level in depths) <= limit:
        depth += 1
    return depth


def _cell(column: Column, texts: tuple[str, str | None], item: Any) -> dict[str, Any]:
    """The values of a cell for the template: its text, pieces for line breaks, and the raw value to sort by."""
    text, full = texts
    numeric = fmt.is_numeric(column.kind)
    known = numeric and text != fmt.MISSING
    return {
        "text": text,
        "pieces": [] if numeric else _BREAKS.split(_unbroken(text) if column.kind == "text" else text),
        "code": "\n".join(map(fmt.printable, str(item).split("\n"))) if column.kind == "code" else None,
        "numeric": numeric,
        "raw": str(item).strip("×>") if known else "",
        "full": None if numeric else full,
        "meter": round(min(1.0, max(0.0, item)), 4) if known and column.kind == "share" else None,
    }
