"""Writes a report to a folder: `report.html`, `report.md` with `images/`, `report.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from warplens.report.jsonout import envelope
from warplens.writing import made, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from warplens.diagnosis.across import RunDiagnosis
    from warplens.report.document import Document
    from warplens.report.overview.numbers import Numbers


ReportFormat: TypeAlias = Literal["html", "md", "json"]

REPORT_FORMATS: Final[tuple[ReportFormat, ...]] = ("html", "md", "json")


def write_examined(
    examined: Sequence[Numbers],
    folder: Path,
    formats: Collection[ReportFormat],
    run: RunDiagnosis | None = None,
) -> list[Path]:
    """Write one report on analysed profiles, and on their run if they are the ranks of one.

    The folder is made if it does not exist; files of an earlier report in it are replaced. Returns the files to open,
    in the order of `REPORT_FORMATS`; images are not among them.
    """
    document = None
    if set(formats) - {"json"}:
        # Charts take half a second to import; JSON needs none.
        from warplens.report.overview.document import report_document

        document = report_document(examined, run)
    return write_document(document, folder, formats, data=lambda: report_json(examined, run))


def report_json(profiles: Sequence[Numbers], run: RunDiagnosis | None = None) -> bytes:
    """`report.json`: the tables of every profile, each up to `MOST_ROWS` (schema `warplens.report/1`)."""
    sources = [numbers.capture.source for numbers in profiles]
    warnings = [note for numbers in profiles for note in numbers.notes]
    return envelope("report", sources, report_data(profiles, run), warnings)


def report_data(profiles: Sequence[Numbers], run: RunDiagnosis | None = None) -> dict[str, Any]:
    """`data` of `report.json`, with `run` if the profiles are the ranks of one run."""
    from warplens.report.overview.numbers import overview_data

    data: dict[str, Any] = {"profiles": [with_limited_tables(overview_data(numbers)) for numbers in profiles]}
    if run is None:
        return data
    from warplens.report.run import run_data

    return data | {"run": run_data(run)}


#: Rows of a table in `report.json`, at most. Only tables by name are longer, where a program gives each of its ranges
#: or kernels a name of its own.
MOST_ROWS: Final = 20_000


def with_limited_tables(data: Any) -> Any:
    """The data with the first `MOST_ROWS` rows of longer tables, and beside each (`rows`) the number of all of them.

    >>> import polars as pl
    >>> with_limited_tables({"rows": pl.DataFrame({"row": range(30_000)})})["rows_total"]
    30000
    """
    import polars as pl

    if isinstance(data, list):
        return [with_limited_tables(item) for item in data]
    if not isinstance(data, dict):
        return data
    limited: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, pl.DataFrame) and value.height > MOST_ROWS:
            limited |= {name: value.head(MOST_ROWS), f"{name}_total": value.height}
        else:
            limited[name] = with_limited_tables(value)
    return limited


def form_named(output: Path) -> ReportFormat | None:
    """The format of a file such as `report.html`, by its suffix; None for a folder."""
    matching = (form for form in REPORT_FORMATS if output.suffix == f".{form}")
    return None if output.is_dir() else next(matching, None)


def write_document(
    document: Document | None,
    folder: Path,
    formats: Collection[str] = ("html", "md"),
    name: str = "report",
    data: Callable[[], bytes] | None = None,
) -> list[Path]:
    """Write any document as `<name>.html`, as `<name>.md` with its charts in `images/`, and its data as `<name>.json`.

    Args:
        document: None if only its data are to be written.
        folder: made if it does not exist; or the one file to write, whose suffix replaces `formats`.
        formats: of `html`, `md` and, with `data`, `json`.

    Returns:
        The files to open.
    """
    if (form := form_named(folder)) is not None:
        folder, name, formats = folder.parent, folder.stem, {form}
    folders = (folder, folder / "images") if document is not None and "md" in formats else (folder,)
    with made(*folders):
        return list(_written(document, folder, formats, name, data))


def _written(
    document: Document | None, folder: Path, formats: Collection[str], name: str, data: Callable[[], bytes] | None
) -> Iterator[Path]:
    """Writes the document and the data in these formats, and yields the files, except images."""
    if document is not None and "html" in formats:
        from warplens.report.html import render_html

        page = folder / f"{name}.html"
        write_whole(page, render_html(document))
        yield page
    if document is not None and "md" in formats:
        from warplens.report.markdown import render_markdown

        # Documents in one folder share `images`, and their figures may have the same ids.
        addresses = {figure.id: f"images/{name}-{figure.id}.svg" for figure in document.figures()}
        for figure in document.figures():
            write_whole(folder / addresses[figure.id], figure.chart.svg(figure.alt))
        text = folder / f"{name}.md"
        write_whole(text, render_markdown(document, lambda figure: addresses[figure.id]))
        yield text
    if "json" in formats and data is not None:
        path = folder / f"{name}.json"
        write_whole(path, data())
        yield path
