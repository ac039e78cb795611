"""HTML cards for notebooks: the answer, the time budget as a bar, one step as a timeline. No resource is loaded.

The text comes from `brief`, parts and colours from the report, marks from its timeline. Styles are inline and the card
has its own background, since the notebook's page has its own style. In a dark theme of JupyterLab, VS Code or Colab a
style sheet switches the colours; notebooks that remove style sheets, such as untrusted ones, keep the light colours.
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

#: Parts of the bar below this share are drawn without a name.
_SMALLEST_NAMED_SHARE: Final = 0.03

_INKS: Final = {"critical": "blocking", "warning": "warning", "good": "accent", "plain": "ink", "quiet": "soft"}

#: CSS selectors of notebooks in a dark theme.
_DARK: Final = ("[data-jp-theme-light=false]", ".vscode-dark", "html[theme=dark]")

#: Tracks on a card: at most this many of GPUs, and this many rows of ranges of the thread that launches the most.
_GPU_TRACKS, _RANGE_ROWS = 6, 2

#: Cells of a track. Marks narrower than a cell are merged.
_CELLS: Final = 600

#: Tracks of at most this many marks show names as tooltips.
_MOST_TOOLTIPS: Final = 80

#: Rows of a table on a card.
_ROWS: Final = 10


def verdict_card(
    source: str, lines: Iterable[Line], budgets: Iterable[TimeBudget], view: TimelineView | None = None
) -> str:
    """The answer, the time budget of each GPU, and the timeline of the step that `view` opens on."""
    rows = "".join(_line(line) for line in lines)
    table = f"<table style='border-collapse:collapse;margin:0'>{rows}</table>"
    return _card(source, table + "".join(map(budget_bar, budgets)) + ("" if view is None else timeline_strip(view)))


def budget_bar(budget: TimeBudget) -> str:
    """The time budget of one GPU as a bar as long as the window, with the names of its parts."""
    parts = titled_parts(budget).select("group", "part", "title", "share", "time_ns").rows()
    segments, names = [], []
    for group, part, title, share, time_ns in parts:
        if not share:
            continue
        fill = _ink(part_fill(group, part))
        label = f"{title}: {fmt.share(share)}, {fmt.duration(time_ns)}"
        segments.append(f"<span title='{_text(label)}' style='flex:{share:.5f} 0 0;background:{fill}'></span>")
        if share >= _SMALLEST_NAMED_SHARE:
            mark = f"<span style='display:inline-block;width:.7em;height:.7em;background:{fill}'></span>"
            names.append(f"<span style='margin-right:1.2em;white-space:nowrap'>{mark} {_text(label)}</span>")
    busy = fmt.share(budget.busy_ns / budget.duration_ns)
    head = _text(f"GPU {budget.device}: busy {busy} of {fmt.duration(budget.duration_ns)}")
    strip = f"<div role='img' aria-label='{head}' style='display:flex;height:1.4em;gap:1px'>{''.join(segments)}</div>"
    return (
        f"<div style='margin-top:.8em'>{head}</div>{strip}"
        f"<div style='font-size:.85em;margin-top:.3em;display:flex;flex-wrap:wrap'>{''.join(names)}</div>"
    )


def timeline_strip(view: TimelineView) -> str:
    """The step that a timeline opens on: idle time and streams of the GPUs, ranges and calls of one thread."""
    begin, end = view.opens
    if end <= begin:
        return ""
    level = view.levels[0].merged(max((end - begin) // _CELLS, 1))
    touching = (level.end_ns > begin) & (level.start_ns < end)
    gpus = [track for track in view.tracks if track.kind in ("idle", "stream")]
    hosts = [track for track in view.tracks if track.kind in ("ranges", "calls")]
    hosts = [track for track in hosts if track.owner == hosts[0].owner]
    shown: list[tuple[Track, int]] = [(track, 1) for track in gpus[:_GPU_TRACKS]]
    shown += [(track, min(track.rows, _RANGE_ROWS if track.kind == "ranges" else 1)) for track in hosts]
    rows = []
    for track, count in shown:
        for number in range(count):
            marks = np.flatnonzero(touching & (level.row == track.first + number))
            start = np.maximum(level.start_ns[marks], begin) - begin
            width = np.minimum(level.end_ns[marks], end) - begin - start
            names = [view.names[name][:2] for name in level.name[marks].tolist()]
            events = fmt.plural(int(level.count[marks].sum()), "event")
            rows.append(_lane("" if number else track.label, events, (end - begin) / _CELLS, start, width, names))
    step = view.opens_step
    opened = f"Step {step.index}, of median length" if step is not None else "The analysed window"
    not_shown = f"; {fmt.plural(len(gpus) - _GPU_TRACKS, 'more track')} of GPUs" if len(gpus) > _GPU_TRACKS else ""
    heading = f"{opened}, as recorded: {fmt.duration(end - begin)}{not_shown}"
    return f"<div style='margin-top:.8em'>{_text(heading)}</div>{''.join(rows)}"


def _lane(
    label: str, events: str, cell_ns: float, start: Int64s, width: Int64s, names: Sequence[tuple[str, str]]
) -> str:
    """One row of a track as SVG, one path per colour and tooltip; `cell_ns` is the time of one unit of its width."""
    paths: dict[tuple[str, str], str] = {}
    for at_ns, width_ns, (name, fill) in zip(start.tolist(), width.tolist(), names, strict=True):
        drawn_width = f"{max(width_ns / cell_ns, 0.5):.4g}"
        key = (f"{name}, {fmt.duration(width_ns)}" if len(names) <= _MOST_TOOLTIPS else "", fill)
        paths[key] = f"{paths.get(key, '')}M{at_ns / cell_ns:.5g} 0h{drawn_width}v10h-{drawn_width}z"
    drawn = "".join(
        f"<path style='fill:{_ink(fill)}' d='{path}'>{f'<title>{_text(title)}</title>' if title else ''}</path>"
        for (title, fill), path in paths.items()
    )
    return (
        "<div style='display:grid;grid-template-columns:12.5em minmax(0,1fr);gap:.6em;align-items:center;"
        f"font-size:.85em;margin-top:.15em'><span style='color:{_ink('soft')}'>{_text(label)}</span>"
        f"<svg role='img' aria-label='{_text(f'{label}: {events}')}' viewBox='0 0 {_CELLS} 10' "
        f"preserveAspectRatio='none' style='display:block;width:100%;height:1.1em;background:{_ink('track')}'>"
        f"{drawn}</svg></div>"
    )


def table_card(title: str, facts: Sequence[str], tables: Iterable[Table]) -> str:
    """The sentences and the first rows of the tables of an answer."""
    sentences = "".join(f"<div>{_text(fact)}</div>" for fact in facts)
    return _card(title, sentences + "".join(map(_table, tables)))


def _card(title: str, content: str) -> str:
    style = (
        f"font-family:{FONT.replace(chr(34), '')};color:{_ink('ink')};background:{_ink('surface')};"
        f"border:1px solid {_ink('line')};border-radius:6px;padding:.9em 1.1em;max-width:60em;overflow-x:auto"
    )
    dark = "".join(f"--wl-{token}:{colours[1]};" for token, colours in {**PAGE, **FILLS}.items())
    sheet = f"<style>{','.join(f'{theme} .wl-card' for theme in _DARK)}{{{dark}}}</style>"
    head = f"<div style='color:{_ink('soft')}'>{_text(title)}</div>"
    return f"{sheet}<div class='wl-card' style='{style}'>{head}{content}</div>"


def _ink(token: str) -> str:
    """The CSS colour of a token: that of the light theme, unless the style sheet of the card sets another."""
    return f"var(--wl-{token},{light_ink(token)})"


def _line(line: Line) -> str:
    ink = _ink(_INKS[line.tone])
    code = "".join(
        f"<pre style='margin:.2em 0;white-space:pre-wrap;color:{_ink('ink')};background:{_ink('raised')}'>"
        f"{_text(line_of_code)}</pre>"
        for line_of_code in line.code
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
    more_rows = f"<div style='color:{_ink('soft')}'>{fmt.plural(more, 'more row')} in .frame</div>" if more > 0 else ""
    empty = "" if table.rows.height else _text(table.empty)
    return (
        f"<div style='margin-top:.8em;font-weight:bold'>{_text(table.caption)}</div>{empty}"
        f"<table style='border-collapse:collapse;font-size:.9em'><tr>{head}</tr>{rows}</table>{more_rows}"
    )


def _cell(tag: str, shown: str, numeric: bool, full: str | None = None) -> str:
    title = f" title='{_text(full)}'" if full else ""
    align = "right" if numeric else "left"
    return f"<{tag}{title} style='text-align:{align};padding:.1em .7em .1em 0'>{_text(shown)}</{tag}>"


def _text(text: str) -> str:
    return html.escape(fmt.printable(text), quote=True)
