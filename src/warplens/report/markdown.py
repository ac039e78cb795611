"""Renders a document as GitHub-flavoured Markdown, with charts as image files beside it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from warplens.report import text as fmt
from warplens.report.document import (
    NOTE_TAGS,
    Answer,
    Block,
    Document,
    Figure,
    Jumps,
    KeyFigures,
    Notes,
    Paragraph,
    Section,
    Table,
    View,
)

#: Maps a figure to the address of its image, relative to the Markdown file.
ImageAddress: TypeAlias = "Callable[[Figure], str]"

#: Characters that would start markup. Underscores inside a word are harmless, and common in names.
_MARKUP = re.compile(r"[\\`*\[\]|~$#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")

#: Precedes a name for each level of a tree; Markdown drops ordinary spaces at the begin of a cell.
_INDENT = "\N{EM SPACE}"


def render_markdown(document: Document, image: ImageAddress | None = None) -> str:
    """The whole document as Markdown.

    `image` maps a figure to the address of its image; None for SVG files in `images/`.
    """
    address = image or (lambda figure: f"images/{figure.id}.svg")
    return "\n\n".join(part for part in _document(document, 1, address) if part) + "\n"


def _document(document: Document, level: int, image: ImageAddress) -> Iterator[str]:
    yield f"{'#' * level} {escaped(document.title)}"
    if document.meta:
        yield " · ".join(f"{escaped(label)}: {escaped(text)}" for label, text in document.meta)
    if document.answer is not None:
        yield from _answer(document.answer)
    yield escaped(document.lead)
    for section in document.sections:
        yield from _section(section, level + 1, image)
    for part in document.parts:
        yield from _document(part, level + 1, image)


def _answer(answer: Answer) -> Iterator[str]:
    """The answer as Markdown: notes, the verdict, and a list of gain, remedy and certainty."""
    if answer.notes:
        yield _notes(Notes(answer.notes))
    yield f"**{escaped(answer.verdict)}**"
    lines = {
        answer.headings[0]: "; ".join(part for part in (f"{answer.gain}{answer.unit}", answer.gain_range) if part),
        answer.headings[1]: answer.do,
        "In short": answer.brings,
        "Beside it": answer.together,
        "How sure": answer.sure,
        "To refute it": answer.refute,
        **{
            strip.title: ", ".join(f"{part.title} {fmt.share(part.share)}" for part in strip.segments)
            for strip in answer.strips
        },
    }
    code = {answer.headings[1]: f"\n{fenced(answer.code, '  ')}"} if answer.code else {}
    yield "\n".join(
        f"- {escaped(label)}: {escaped(text)}{code.get(label, '')}" for label, text in lines.items() if text
    )


def fenced(code: str, indent: str = "") -> str:
    """Code as a block to copy, with the indentation of the list item that it belongs to."""
    fence = "`" * max([3, *(1 + len(ticks) for ticks in re.findall("`+", code))])
    return "\n".join(f"{indent}{line}" for line in (fence, *map(fmt.printable, code.split("\n")), fence))


def markdown_table(table: Table) -> str:
    """One table as a pipe table: its rows up to the limit, names shortened, numbers formatted."""
    shown = table.shown()
    if shown.is_empty():
        return escaped(table.empty)
    lines = [
        _pipes(escaped(column.title) for column in table.columns),
        _pipes("---:" if fmt.is_numeric(column.kind) else ":---" for column in table.columns),
    ]
    for row in shown.iter_rows(named=True):
        indent = _INDENT * row[table.depth] if table.depth else ""
        cells = [
            _lines(str(row[column.name])) if column.kind == "code" else escaped(text)
            for column, (text, _) in zip(table.columns, table.texts(row), strict=True)
        ]
        lines.append(_pipes([indent + cells[0], *cells[1:]]))
    if shown.height < table.rows.height:
        lines.append(f"\n{fmt.count(shown.height)} of {fmt.count(table.rows.height)} rows.")
    return "\n".join(lines)


def _lines(code: str) -> str:
    """Code in a cell, with line breaks and indentation kept."""
    return "<br>".join(
        _code(fmt.printable(line)).replace("  ", "&nbsp; ").replace("|", "&#124;") for line in code.split("\n")
    )


def escaped(text: str) -> str:
    """The text with markup characters escaped, for paragraphs and table cells."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(fmt.printable(text), quote=False))


def _section(section: Section, level: int, image: ImageAddress, *, titled: bool = True) -> Iterator[str]:
    if titled:
        yield f"{'#' * level} {escaped(section.title)}"
    for block in section.blocks:
        yield _block(block, image)
    for number, inner in enumerate(section.subsections):
        repeats = number == 0 and not section.blocks and inner.title == section.title
        yield from _section(inner, level if repeats else level + 1, image, titled=not repeats)


def _block(block: Block, image: ImageAddress) -> str:
    if isinstance(block, Paragraph):
        return escaped(block.text)
    if isinstance(block, Notes):
        return _notes(block)
    if isinstance(block, KeyFigures):
        figures = ((figure.label, fmt.value(figure.value, figure.kind), figure.explanation) for figure in block.figures)
        rows = (_pipes((escaped(label), f"**{escaped(text)}**", escaped(why))) for label, text, why in figures)
        return "\n".join((_pipes(("Figure", "Value", "Meaning")), _pipes((":---", "---:", ":---")), *rows))
    if isinstance(block, Jumps):
        return escaped(f"{block.text} {' · '.join(words for _, words in block.places)}")
    if isinstance(block, View):
        return "\n\n".join(_view(block))
    if isinstance(block, Figure):
        return f"**{escaped(block.caption)}**\n\n![{escaped(block.alt)}]({image(block)})"
    return "\n\n".join(
        part for part in (f"**{escaped(block.caption)}**", markdown_table(block), _full_names(block)) if part
    )


def _view(block: View) -> Iterator[str]:
    yield f"**{escaped(block.caption)}** (in the HTML report)"
    if block.rows:
        rows = (_pipes(escaped(cell) for cell in row.cells) for row in block.rows)
        yield "\n".join([_pipes(block.heading), _pipes(":---" for _ in block.heading), *rows])


def _notes(block: Notes) -> str:
    lines = []
    for note in block.notes:
        remedy = f" {escaped(note.remedy)}" if note.remedy else ""
        # A remedy is a separate sentence, so a text without a stop needs one.
        stop = "." if remedy and note.text[-1:] not in ".!?:" else ""
        lines.append(f"- **{NOTE_TAGS[note.level.value]}.** {escaped(note.text)}{stop}{remedy}")
    return "\n".join(lines)


def _full_names(table: Table) -> str:
    """A folded list of the full names of a table's shortened names."""
    rows = table.shown().iter_rows(named=True)
    names = {full: short for row in rows for short, full in table.texts(row) if full}
    if not names:
        return ""
    entries = (f"<li>{_code(short)}<br>{_code(full)}</li>" for full, short in names.items())
    return "<details><summary>Full names</summary><ul>\n" + "\n".join(entries) + "\n</ul></details>"


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _pipes(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
