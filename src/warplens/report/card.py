"""Answers as HTML for a notebook: a card with the answer and the time budget as a bar; no script, nothing loaded.

The words are those of `brief`, the parts and colours those of the report. A notebook's page has a style of its own, so
that everything here is styled in place; colours are the light theme's on a ground of their own, which every theme of a
notebook shows alike.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from warplens.report import text as fmt
from warplens.report.questions.time import titled_parts
from warplens.report.theme import FONT, light_ink, part_fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from warplens.analysis.timebudget import TimeBudget
    from warplens.report.brief import Line
    from warplens.report.document import Table

#: Parts of the bar below this share are drawn, but not named.
_NAMED: Final = 0.03

_INKS: Final = {"critical": "blocking", "warning": "warning", "good": "accent", "plain": "ink", "quiet": "soft"}

#: Rows of a table on a card.
_ROWS: Final = 10


def verdict_card(source: str, lines: Iterable[Line], budgets: Iterable[TimeBudget]) -> str:
    """The answer, and below it where the time of each GPU went."""
    rows = "".join(_line(line) for line in lines)
    table = f"<table style='border-collapse:collapse;margin:0'>{rows}</table>"
    return _card(source, table + "".join(map(budget_bar, budgets)))


def budget_bar(found: TimeBudget) -> str:
    """The time budget of one GPU as a bar that is the whole window, with the names of its parts."""
    parts = titled_parts(found).select("group", "part", "title", "share", "time_ns").rows()
    segments, names = [], []
    for group, part, title, share, time_ns in parts:
        if not share:
            continue
        fill = light_ink(part_fill(group, part))
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


def table_card(title: str, facts: Sequence[str], tables: Iterable[Table]) -> str:
    """The sentences and the first rows of the tables of an answer."""
    said = "".join(f"<div>{_text(fact)}</div>" for fact in facts)
    return _card(title, said + "".join(map(_table, tables)))


def _card(title: str, inside: str) -> str:
    style = (
        f"font-family:{FONT.replace(chr(34), '')};color:{light_ink('ink')};background:{light_ink('surface')};"
        f"border:1px solid {light_ink('line')};border-radius:6px;padding:.9em 1.1em;max-width:60em;overflow-x:auto"
    )
    return f"<div style='{style}'><div style='color:{light_ink('soft')}'>{_text(title)}</div>{inside}</div>"


def _line(line: Line) -> str:
    ink = light_ink(_INKS[line.tone])
    code = "".join(
        f"<pre style='margin:.2em 0;white-space:pre-wrap;color:{light_ink('ink')};background:{light_ink('raised')}'>"
        f"{_text(each)}</pre>"
        for each in line.code
    )
    cell = "padding:.15em .6em .15em 0;vertical-align:top;text-align:left"
    return (
        f"<tr style='background:none'><th style='{cell};white-space:nowrap;color:{light_ink('soft')}'>"
        f"{_text(line.label)}</th><td style='{cell};color:{ink}'>{_text(line.text)}{code}</td></tr>"
    )


def _table(table: Table) -> str:
    head = "".join(_cell("th", column.title, fmt.is_numeric(column.kind)) for column in table.columns)
    rows = "".join(f"<tr>{''.join(_cells(row, table))}</tr>" for row in table.rows.head(_ROWS).iter_rows(named=True))
    more = table.rows.height - _ROWS
    rest = f"<div style='color:{light_ink('soft')}'>{fmt.plural(more, 'more row')} in .frame</div>" if more > 0 else ""
    none = "" if table.rows.height else _text(table.empty)
    return (
        f"<div style='margin-top:.8em;font-weight:bold'>{_text(table.caption)}</div>{none}"
        f"<table style='border-collapse:collapse;font-size:.9em'><tr>{head}</tr>{rows}</table>{rest}"
    )


def _cells(row: dict[str, object], table: Table) -> Iterator[str]:
    for column in table.columns:
        value = row[column.name]
        shown, full = fmt.name_and_full(value, row[column.full] if column.full else None, column.kind)  # type: ignore[arg-type]
        yield _cell("td", shown, fmt.is_numeric(column.kind), full)


def _cell(tag: str, shown: str, numeric: bool, full: str | None = None) -> str:
    title = f" title='{_text(full)}'" if full else ""
    align = "right" if numeric else "left"
    return f"<{tag}{title} style='text-align:{align};padding:.1em .7em .1em 0'>{_text(shown)}</{tag}>"


def _text(text: str) -> str:
    return html.escape(fmt.printable(text), quote=True)
