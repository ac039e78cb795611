"""Answers as HTML for a notebook: the answer, the time budget as a bar, one step as a timeline; nothing is loaded.

The words are those of `brief`, the parts and colours those of the report, the marks those of its timeline. A notebook's
page has a style of its own, so that everything here is styled in place, on a ground of its own. Where the notebook says
that its theme is dark (JupyterLab, VS Code, Colab) a style sheet turns the colours; where it removes style sheets, as
from untrusted notebooks, they stay the light ones.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.report import text as fmt
from warplens.report.questions.time import titled_parts
from warplens.report.theme import FILLS, FONT, PAGE, light_ink, part_fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from warplens.analysis.timebudget import TimeBudget
    from warplens.profile.schema import Int64s
    from warplens.report.brief import Line
    from warplens.report.document import Table
    from warplens.report.tracks import TimelineView, Track

#: Parts of the bar below this share are drawn, but not named.
_NAMED: Final = 0.03

_INKS: Final = {"critical": "blocking", "warning": "warning", "good": "accent", "plain": "ink", "quiet": "soft"}

#: What notebooks of a dark theme are told by.
_DARK: Final = ("[data-jp-theme-light=false]", ".vscode-dark", "html[theme=dark]")

#: Tracks of a step on a card: so many of GPUs, and of the thread that launches the most so many rows of ranges.
_GPU_TRACKS, _RANGE_ROWS = 6, 2

#: Marks of a track are no narrower than this part of the step; shorter neighbours are one.
_CELL: Final = 600

#: Up to so many marks of a track say their names.
_POINTED: Final = 80

#: Rows of a table on a card.
_ROWS: Final = 10


def verdict_card(
    source: str, lines: Iterable[Line], budgets: Iterable[TimeBudget], view: TimelineView | None = None
) -> str:
    """The answer, below it where the time of each GPU went, and what ran when in the step that `view` opens on."""
    rows = "".join(_line(line) for line in lines)
    table = f"<table style='border-collapse:collapse;margin:0'>{rows}</table>"
    return _card(source, table + "".join(map(budget_bar, budgets)) + ("" if view is None else timeline_strip(view)))


def budget_bar(found: TimeBudget) -> str:
    """The time budget of one GPU as a bar that is the whole window, with the names of its parts."""
    parts = titled_parts(found).select("group", "part", "title", "share", "time_ns").rows()
    segments, names = [], []
    for group, part, title, share, time_ns in parts:
        if not share:
            continue
        fill = _ink(part_fill(group, part))
        told = f"{title}: {fmt.share(share)}, {fmt.duration(time_ns)}"
        segments.append(f"<span title='{_text(told)}' style='flex:{share:.5f} 0 0;background:{fill}'></span>")
        if share >= _NAMED:
            mark = f"<span style='display:inline-block;width:.7em;height:.7em;background:{fill}'></span>"
            names.append(f"<span style='margin-right:1.2em;white-space:nowrap'>{mark} {_text(told)}</span>")
    busy = fmt.share(found.busy_ns / found.duration_ns)
    head = _text(f"GPU {found.device}: busy {busy} of {fmt.duration(found.duration_ns)}")
    strip = f"<div role='img' aria-label='{head}' style='display:flex;height:1.4em;gap:1px'>{''.join(segments)}</div>"
    return (
        f"<div style='margin-top:.8em'>{head}</div>{strip}"
        f"<div style='font-size:.85em;margin-top:.3em;display:flex;flex-wrap:wrap'>{''.join(names)}</div>"
    )


def timeline_strip(view: TimelineView) -> str:
    """The step that a timeline opens on: idle time by cause and streams of the GPUs, ranges and calls of a thread."""
    begin, end = view.opens
    if end <= begin:
        return ""
    level = view.levels[0].merged(max((end - begin) // _CELL, 1))
    touching = (level.end_ns > begin) & (level.start_ns < end)
    gpus = [track for track in view.tracks if track.kind in ("idle", "stream")]
    hosts = [track for track in view.tracks if track.kind in ("ranges", "calls")]
    hosts = [track for track in hosts if track.owner == hosts[0].owner]
    shown: list[tuple[Track, int]] = [(track, 1) for track in gpus[:_GPU_TRACKS]]
    shown += [(track, min(track.rows, _RANGE_ROWS if track.kind == "ranges" else 1)) for track in hosts]
    rows = []
    for track, count in shown:
        for number in range(count):
            mine = np.flatnonzero(touching & (level.row == track.first + number))
            start = np.maximum(level.start_ns[mine], begin) - begin
            width = np.minimum(level.end_ns[mine], end) - begin - start
            names = [view.names[name][:2] for name in level.name[mine].tolist()]
            events = fmt.plural(int(level.count[mine].sum()), "event")
            rows.append(_lane("" if number else track.label, events, (end - begin) / _CELL, start, width, names))
    step = view.opens_step
    which = f"Step {step.index}, of median length" if step is not None else "The analysed window"
    left = f"; {fmt.plural(len(gpus) - _GPU_TRACKS, 'more track')} of GPUs" if len(gpus) > _GPU_TRACKS else ""
    told = f"{which}, as recorded: {fmt.duration(end - begin)}{left}"
    return f"<div style='margin-top:.8em'>{_text(told)}</div>{''.join(rows)}"


def _lane(label: str, events: str, part: float, start: Int64s, width: Int64s, names: Sequence[tuple[str, str]]) -> str:
    """A track; its marks are shapes of one colour each, and where they are few, they tell their names."""
    paths: dict[tuple[str, str], str] = {}
    for at, long, (name, fill) in zip(start.tolist(), width.tolist(), names, strict=True):
        wide = f"{max(long / part, 0.5):.4g}"
        key = (f"{name}, {fmt.duration(long)}" if len(names) <= _POINTED else "", fill)
        paths[key] = f"{paths.get(key, '')}M{at / part:.5g} 0h{wide}v10h-{wide}z"
    drawn = "".join(
        f"<path style='fill:{_ink(fill)}' d='{path}'>{f'<title>{_text(title)}</title>' if title else ''}</path>"
        for (title, fill), path in paths.items()
    )
    return (
        "<div style='display:grid;grid-template-columns:12.5em minmax(0,1fr);gap:.6em;align-items:center;"
        f"font-size:.85em;margin-top:.15em'><span style='color:{_ink('soft')}'>{_text(label)}</span>"
        f"<svg role='img' aria-label='{_text(f'{label}: {events}')}' viewBox='0 0 {_CELL} 10' "
        f"preserveAspectRatio='none' style='display:block;width:100%;height:1.1em;background:{_ink('track')}'>"
        f"{drawn}</svg></div>"
    )


def table_card(title: str, facts: Sequence[str], tables: Iterable[Table]) -> str:
    """The sentences and the first rows of the tables of an answer."""
    said = "".join(f"<div>{_text(fact)}</div>" for fact in facts)
    return _card(title, said + "".join(map(_table, tables)))


def _card(title: str, inside: str) -> str:
    style = (
        f"font-family:{FONT.replace(chr(34), '')};color:{_ink('ink')};background:{_ink('surface')};"
        f"border:1px solid {_ink('line')};border-radius:6px;padding:.9em 1.1em;max-width:60em;overflow-x:auto"
    )
    dark = "".join(f"--wl-{token}:{pair[1]};" for token, pair in {**PAGE, **FILLS}.items())
    sheet = f"<style>{','.join(f'{theme} .wl-card' for theme in _DARK)}{{{dark}}}</style>"
    head = f"<div style='color:{_ink('soft')}'>{_text(title)}</div>"
    return f"{sheet}<div class='wl-card' style='{style}'>{head}{inside}</div>"


def _ink(token: str) -> str:
    """The colour of a token: the light theme's, unless the style sheet of the card says another."""
    return f"var(--wl-{token},{light_ink(token)})"


def _line(line: Line) -> str:
    ink = _ink(_INKS[line.tone])
    code = "".join(
        f"<pre style='margin:.2em 0;white-space:pre-wrap;color:{_ink('ink')};background:{_ink('raised')}'>"
        f"{_text(each)}</pre>"
        for each in line.code
    )
    cell = "padding:.15em .6em .15em 0;vertical-align:top;text-align:left"
    return (
        f"<tr style='background:none'><th style='{cell};white-space:nowrap;color:{_ink('soft')}'>"
        f"{_text(line.label)}</th><td style='{cell};color:{ink}'>{_text(line.text)}{code}</td></tr>"
    )


def _table(table: Table) -> str:
    head = "".join(_cell("th", column.title, fmt.is_numeric(column.kind)) for column in table.columns)
    rows = ""
    for row in table.rows.head(_ROWS).iter_rows(named=True):
        cells = zip(table.columns, table.texts(row), strict=True)
        drawn = (_cell("td", shown, fmt.is_numeric(column.kind), full) for column, (shown, full) in cells)
        rows += f"<tr>{''.join(drawn)}</tr>"
    more = table.rows.height - _ROWS
    rest = f"<div style='color:{_ink('soft')}'>{fmt.plural(more, 'more row')} in .frame</div>" if more > 0 else ""
    none = "" if table.rows.height else _text(table.empty)
    return (
        f"<div style='margin-top:.8em;font-weight:bold'>{_text(table.caption)}</div>{none}"
        f"<table style='border-collapse:collapse;font-size:.9em'><tr>{head}</tr>{rows}</table>{rest}"
    )


def _cell(tag: str, shown: str, numeric: bool, full: str | None = None) -> str:
    title = f" title='{_text(full)}'" if full else ""
    align = "right" if numeric else "left"
    return f"<{tag}{title} style='text-align:{align};padding:.1em .7em .1em 0'>{_text(shown)}</{tag}>"


def _text(text: str) -> str:
    return html.escape(fmt.printable(text), quote=True)
