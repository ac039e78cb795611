"""Runs a case in this process, as a user would at the command line, and keeps everything that it gives back as text."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from tests.golden.surface import surface

HERE = Path(__file__).parent

#: Columns of the terminal that tables are printed for.
_COLUMNS = "120"

#: Of longer texts the beginning is kept, and a fingerprint of all of it.
_WHOLE_CHARACTERS = 2_000_000
_HEAD_CHARACTERS = 20_000

#: The version that the shipped measurements were written by; output that quotes it stays what it is.
_FIRST_VERSION = "0.1.0"


@dataclass(frozen=True)
class Case:
    """One command, and the files that it finds.

    Attributes:
        id: `group/name`; expected output lies in a file for each group.
        words: the command line; none for the group `python`, whose output are the names that the package offers.
            Shipped files that it names are found in the current folder.
        place: further files: where they lie, and the shipped file that they are a copy of. None makes a folder; a name
            without the `.xz` of its source is unpacked.
        slow: whether it is left out of the quick tier.
    """

    id: str
    words: tuple[str, ...]
    place: Mapping[str, str | None] = field(default_factory=dict)
    slow: bool = False

    @property
    def group(self) -> str:
        """The file that holds what is expected."""
        return self.id.partition("/")[0]


def run(case: Case) -> dict[str, str]:
    """What the command gives: exit code, both streams, and every file that it writes, as normalised texts by name."""
    if case.group == "python":
        return {"names": surface()}
    from typer.testing import CliRunner

    from warplens.cli.main import app

    with _work_folder() as folder:
        before = _provide(case, folder)
        result = CliRunner().invoke(app, list(case.words), env={"COLUMNS": _COLUMNS})
        if isinstance(result.exception, Exception):
            raise result.exception
        found = {"exit code": str(result.exit_code), "stdout": result.stdout, "stderr": result.stderr}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name not in before:
                found[name] = _text_of(path)
        if "--help" in case.words or "-h" in case.words:
            found["stdout"] = re.sub(
                r"[ \t]*\n[ \t]*|[ \t]+", lambda gap: "\n" if "\n" in gap[0] else " ", result.stdout
            )
        return {name: _shortened(_normalised(text, folder)) for name, text in found.items()}


@cache
def shipped() -> dict[str, Path]:
    """Every file that a case may name: those that come with Warplens, of this folder, and of the readers' tests."""
    import warplens

    source = Path(warplens.__file__).parents[1]
    folders = (
        *(HERE.parents[1] / "tests").glob("**/data/counter_modes"),
        HERE.parents[1] / "data",
        *(path for package in sorted(source.glob("warplens*")) for path in package.glob("**/data")),
        HERE / "inputs",
    )
    return {path.name: path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}


def _provide(case: Case, folder: Path) -> set[str]:
    named = {part for word in case.words for part in re.split(r"[=,]", word) if part in shipped()}
    for place, source in {**dict.fromkeys(named, ""), **case.place}.items():
        target = folder / place
        if source is None:
            target.mkdir(parents=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        origin = shipped()[source or place]
        if origin.suffix == ".xz" and target.suffix != ".xz":
            target.write_bytes(lzma.decompress(origin.read_bytes()))
        else:
            shutil.copyfile(origin, target)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@contextmanager
def _work_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden") as name:
        folder = Path(name).resolve()
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def _text_of(path: Path) -> str:
    content = path.read_bytes()
    kind = path.suffix
    if kind in (".xz", ".gz"):
        content = lzma.decompress(content) if kind == ".xz" else zlib.decompress(content, wbits=31)
        kind = Path(path.stem).suffix
    if kind in (".html", ".svg"):
        return visible(content.decode())
    if kind in (".sqlite", ".db"):
        return _database_text(path)
    if kind == ".parquet":
        return _parquet_text(content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes\nsha256 {hashlib.sha256(content).hexdigest()}\n"


def _database_text(path: Path) -> str:
    lines = []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        for name, sql in database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"):
            rows = list(database.execute(f'SELECT * FROM "{name}"'))
            lines.append(f"{name}: {len(rows)} rows, sha256 {hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}")
            lines.append(f"    {' '.join(sql.split())}")
    return "\n".join(lines) + "\n"


def _parquet_text(content: bytes) -> str:
    import polars as pl

    frame = pl.read_parquet(io.BytesIO(content))
    columns = "\n".join(f"{name}: {dtype}" for name, dtype in frame.schema.items())
    digest = hashlib.sha256(repr(frame.rows()).encode()).hexdigest()
    return f"{columns}\n{frame.height} rows\nsha256 {digest}\n"


class _Visible(HTMLParser):
    """Text that a reader sees, a line for each block, cells of a row separated; what is said of images, too."""

    _HIDDEN = frozenset({"script", "style", "template", "noscript"})
    _INLINE = frozenset(
        ("a", "abbr", "b", "code", "em", "i", "small", "span", "strong", "sub", "sup", "td", "th", "tspan")
    )
    _SAID = ("alt", "title", "aria-label")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._HIDDEN:
            self._hidden += 1
        if tag not in self._INLINE:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        self.parts += [f" [{name}: {value}] " for name, value in attrs if name in self._SAID and value]

    def handle_endtag(self, tag: str) -> None:
        if tag in self._HIDDEN:
            self._hidden -= 1
        if tag not in self._INLINE:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data.replace("\n", " "))


def visible(html: str) -> str:
    parser = _Visible()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line) + "\n"


def _normalised(text: str, folder: Path) -> str:
    import warplens

    for version in {_FIRST_VERSION, warplens.__version__}:
        text = re.sub(rf"(?<![\w.]){re.escape(version)}(?!\w|\.\d)", "VERSION", text)
    return text.replace(str(folder), "WORK").replace(folder.name, "WORK")


def _shortened(text: str) -> str:
    if len(text) <= _WHOLE_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:_HEAD_CHARACTERS]}\n… in all {len(text)} characters, sha256 {digest}\n"
