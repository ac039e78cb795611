"""What the commands say of one profile, as JSON and as the texts that people read, from one reading of the file."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.golden.running import visible
from warplens.analysis.timeline import Timeline
from warplens.answers.inputs import Selection, selected
from warplens.cli import answer as answers
from warplens.cli.commands import compare as comparing
from warplens.cli.commands import diagnose as diagnosing
from warplens.cli.commands import tables as budgeting
from warplens.cli.options import Format
from warplens.profile import Trace
from warplens.report.html import render_html
from warplens.report.markdown import render_markdown
from warplens.report.overview.document import report_document
from warplens.report.overview.numbers import examine
from warplens.report.write import report_json

#: Wide enough that no cell of a table is broken into lines.
_WIDE = {"COLUMNS": "2000", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Page:
    """One answer.

    Attributes:
        command: that gave it.
        data: `data` of its JSON; of a report that of its only profile.
        texts: format → what people read.
        warnings: those of its JSON.
    """

    command: str
    data: Mapping[str, Any]
    texts: Mapping[str, str]
    warnings: Sequence[Mapping[str, str] | str] = ()


def pages_of(path: Path, *, html: bool = False) -> list[Page]:
    """What `diagnose`, `headroom` and `report` say of a profile.

    Args:
        path: of the profile.
        html: whether to render the report as HTML as well, which takes a second.
    """
    return pages_of_selection(answers.select(path, "steady", None, launch_configuration=True), html=html)


def pages_of_trace(trace: Trace) -> list[Page]:
    """The same of a profile that no file holds."""
    return pages_of_selection(selected(Timeline(trace)))


def pages_of_selection(selection: Selection, *, html: bool = False) -> list[Page]:
    """The same of a profile and window."""
    path = Path(selection.source)
    with (
        patch.object(diagnosing, "select", lambda *_, **__: selection),
        patch.object(diagnosing, "discover", lambda paths: paths),
        patch.object(budgeting, "select", lambda *_, **__: selection),
    ):
        pages = [_answered(diagnosing, "emit", lambda: diagnosing.diagnose([path]))]
        pages.append(_answered(budgeting, "emit", lambda: budgeting.headroom(path, limit=0)))
    numbers = examine(selection.timeline, selection.window)
    document = report_document([numbers])
    texts = {"md": render_markdown(document)}
    if html:
        texts["html"] = visible(render_html(document))
    found = json.loads(report_json([numbers]))["data"]["profiles"][0]
    return [*pages, Page("report", found, texts)]


def compared(baseline: Path, variant: Path) -> Page:
    """What `compare` says of two profiles."""
    return _answered(comparing, "give", lambda: comparing.compare(baseline, variant))


def compared_traces(baseline: Trace, variant: Trace) -> Page:
    """What `compare` says of two profiles that no file holds."""
    given = {Path("baseline"): baseline, Path("variant"): variant}
    sides = tuple(comparing.SideFiles(path, "a trace", (path,)) for path in given)
    with (
        patch.object(comparing, "find_sides", lambda *_: sides),
        patch.object(comparing, "reuse_freed_memory", lambda *_: None),
        patch.object(comparing, "read", lambda path, **_: given[path]),
    ):
        return compared(*given)


def _answered(module: Any, printing: str, command: Callable[[], None]) -> Page:
    kept: list[answers.Answer] = []
    with patch.object(module, printing, lambda answer, *_: kept.append(answer)), redirect_stderr(io.StringIO()):
        command()
    (answer,) = kept
    forms: tuple[Format, ...] = ("table", "md")
    texts: dict[str, str] = {form: _printed(answer, form) for form in forms}
    found = json.loads(answer.json())
    return Page(answer.command, found["data"], texts, found["warnings"])


def _printed(answer: answers.Answer, form: Format) -> str:
    with (
        patch.dict(os.environ, _WIDE),
        redirect_stdout(io.StringIO()) as printed,
        redirect_stderr(io.StringIO()) as notes,
    ):
        answers.emit(answer, form)
    return printed.getvalue() + notes.getvalue()
